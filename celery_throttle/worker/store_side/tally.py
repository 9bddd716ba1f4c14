"""Count starts, ends and waits by limit, and send the counts to the store now and then.

One write for each task would add a tenth to the store's work for the task. So counts are sent together, and the counts
that a killed worker has not sent are lost.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from celery_throttle.core.facts import Result
from celery_throttle.core.history import SLOT, Place, place_of
from celery_throttle.store.history import by_limit
from celery_throttle.store.portions import take_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.store.calls import Store
    from celery_throttle.store.history import Counted
    from celery_throttle.store.scripts import Call
    from celery_throttle.worker.runs import Run

__all__ = ["Tally"]

logger = logging.getLogger(__name__)

#: Counts are sent after `_SOON` seconds if `_ENOUGH` runs have ended, else after `_LATEST` seconds.
_SOON, _ENOUGH, _LATEST = 10.0, 50, 60.0
#: The number of different needs (each key is one) at which counts are sent at once.
_MOST = 1000


class Tally:
    """Counts events by the text of needs; split by limit when the counts are sent."""

    def __init__(self) -> None:
        self._counts: dict[str, list[float]] = {}
        self._since = monotonic()
        self._ended = 0
        self._logged = False  # that the store refuses to count

    def started(self, run: Run) -> None:
        """Count a run that was given to the pool, with its wait."""
        counts = self._of(run.needs.text)
        counts[place_of(run.waited)] += 1
        counts[Place.WAIT_TIME] += run.waited * 1000

    def ended(self, run: Run, result: Result) -> None:
        """Count a run that has ended, with its failure and the time of its permits."""
        counts = self._of(run.needs.text)
        counts[Place.ENDED] += 1
        counts[Place.FAILED] += result is Result.FAILURE
        if run.permit is not None:
            counts[Place.RUN_TIME] += (monotonic() - run.held_since) * 1000
        self._ended += 1

    def add(self, needs: str, place: Place) -> None:
        """Count one event in this place of the history."""
        if needs:
            self._of(needs)[place] += 1

    def calls_or_none(self, store: Store) -> list[tuple[Call, Callable[[Any], None]]]:
        """Return the calls that send the counts with another call; none if they cannot be written."""
        try:
            return self.calls_to_send(store)
        except Exception:  # an error must not keep back the call that they go with
            logger.exception("celery_throttle: counts of this worker are lost")
            return []

    def due(self, now: float) -> bool:
        """Return whether the counts have to be sent with the next call."""
        if not self._counts:
            self._since = now
            return False
        waited = now - self._since
        return waited >= _LATEST or len(self._counts) >= _MOST or (waited >= _SOON and self._ended >= _ENOUGH)

    def take(self) -> list[Counted]:
        """Return the counts, by limit, and start over from zero."""
        counts, self._counts = self._counts, {}
        self._ended, self._since = 0, monotonic()
        return by_limit(counts)

    def calls_to_send(self, store: Store) -> list[tuple[Call, Callable[[Any], None]]]:
        """Return the calls that send the counts: separate calls, because a full store refuses them."""
        counts = self.take()
        calls: list[tuple[Call, Callable[[Any], None]]] = []
        while counts:
            calls.append((store.count(take_rows(counts)), self._counted))
        return calls

    def _counted(self, raw: Any) -> None:
        if isinstance(raw, ResponseError) and not self._logged:
            self._logged = True
            logger.warning("celery_throttle: the store keeps no history of this worker's counts: %s", raw)

    def _of(self, needs: str) -> list[float]:
        counts = self._counts.get(needs)
        if counts is None:
            counts = self._counts[needs] = [0] * SLOT
        return counts
