"""Hold runs that are parked until the parked copies are safe; until then the broker keeps their messages.

The user sets how safe (`Durability`). The server answers WAIT and WAITAOF late, and no other command of that connection
before. So these commands have a connection of their own. A round of calls on it asks which of the held runs the store
has, and writes a value. The WAIT that follows covers that write, and all earlier writes of all clients. So the server
that confirms the copies is the server that has them, also after a failover.
"""

from __future__ import annotations

import logging
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery_throttle.errors import StoreUnavailable
from celery_throttle.store.exchange_reply import SavedAnswer
from celery_throttle.worker.runs import State
from celery_throttle.worker.store_side.decisions import PAUSE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_throttle.core.durability import Durability
    from celery_throttle.store.calls import Store
    from celery_throttle.worker.held_back.held_back import HeldBack
    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.runs import Run
    from celery_throttle.worker.store_side.decisions import Decisions
    from celery_throttle.worker.store_side.link import Link

__all__ = ["Saving"]

logger = logging.getLogger(__name__)

#: The most tasks that one call asks about.
_MOST_ROWS = 500
#: Seconds until a problem that goes on is logged again.
_LOG_EVERY = 60.0


class Saving:
    """Asks whether the runs of a group in the state ``SAVING`` are safe; all on the loop.

    Args:
        group: the name of the group.
        store: builds the calls.
        durability: the condition under which a copy is safe.
        gate: takes the answers: runs that are safe, or lost.
        held: holds the runs.
        connect: makes the connection, given this object for its callbacks.
        loop: the loop that everything happens on.

    Attributes:
        link: the connection.
    """

    def __init__(
        self,
        group: str,
        store: Store,
        durability: Durability,
        gate: Decisions,
        held: HeldBack,
        connect: Callable[[Saving], Link],
        loop: Loop,
    ) -> None:
        self._group, self._store, self._durability, self._gate, self._held = group, store, durability, gate, held
        self._round: list[Run] | None = None  # the runs that the store has, by the answers so far
        self._unanswered = 0
        self._paused_until = 0.0  # after the store refused
        self._logged_at: float | None = None  # the time of the last warning; None while all is safe
        self.link = connect(self)
        loop.every_turn(self.tick)

    def tick(self) -> None:
        """Begin a round, if there are runs to ask about and no answer is awaited."""
        if not (self.link.up and self.link.answered) or self.settled:
            return
        if self._round is not None:  # an error kept an answer from having its effect
            self._refused(StoreUnavailable("an answer had no effect"))
        else:
            self._begin()

    @property
    def settled(self) -> bool:
        """Whether there is no answer to wait for: all runs are safe, or the store refuses."""
        return monotonic() < self._paused_until or not self._held.has(State.SAVING, self._group)

    @property
    def _runs(self) -> list[Run]:
        return self._held.of(State.SAVING, group=self._group)

    @property
    def timeout(self) -> float:
        """The seconds that one try takes at most."""
        return self._durability.timeout

    def hurry(self) -> None:
        """Try now, while the broker still takes acknowledgements, because the worker stops."""
        self._paused_until = 0.0
        self.link.connect()

    def log_left(self) -> None:
        """Log how many messages stay at the broker, because the worker stops before their copies are safe."""
        if runs := self._runs:
            logger.warning(
                "celery_throttle: this worker stops, and %d parked tasks are not safe: the broker keeps their messages",
                len(runs),
            )

    def broken(self, error: Exception) -> None:
        """Drop the present round, because the connection broke: the next one may be to another server."""
        logger.debug("celery_throttle: lost the connection that waits for durability: %s", error)
        self._round = None

    def _begin(self) -> None:
        runs = self._runs
        pieces = [runs[first : first + _MOST_ROWS] for first in range(0, len(runs), _MOST_ROWS)]
        there: list[Run] = []
        self._round, self._unanswered = there, len(pieces)
        for piece in pieces:
            call = self._store.saved([run.delivery for run in piece])
            self.link.send(call, partial(self._looked, there, piece))

    def _answers(self, there: list[Run], raw: Any) -> bool:
        """Return whether this is an answer in the present round."""
        if there is not self._round or isinstance(raw, StoreUnavailable):
            return False
        if isinstance(raw, Exception):
            self._refused(raw)
            return False
        return True

    def _looked(self, there: list[Run], runs: Sequence[Run], raw: Any) -> None:
        if not self._answers(there, raw):
            return
        for run, answer in zip(runs, raw, strict=True):
            if answer == SavedAnswer.THERE:
                there.append(run)
            elif self._held.release(run, State.GONE):
                (self._gate.saved if answer == SavedAnswer.DONE else self._gate.lost)(run)
        self._unanswered -= 1
        if self._unanswered:
            return
        if there:
            self.link.wait(self._durability.command, self._durability.timeout, partial(self._waited, there))
        else:
            self._round = None

    def _waited(self, there: list[Run], raw: Any) -> None:
        if not self._answers(there, raw):
            return
        self._round = None
        if not self._durability.reached(raw):
            self._log(f"{self._durability.missed(raw)} after {self._durability.timeout:g} s")
            return
        if self._logged_at is not None:
            self._logged_at = None
            logger.info("celery_throttle: parked tasks are safe again")
        for run in there:
            if self._held.release(run, State.GONE):
                self._gate.saved(run)

    def _refused(self, error: Exception) -> None:
        self._round = None
        self._log(f"the store refuses: {error}")
        self._paused_until = monotonic() + PAUSE

    def _log(self, why: str) -> None:
        if self._logged_at is None or monotonic() - self._logged_at >= _LOG_EVERY:
            self._logged_at = monotonic()
            logger.warning(
                "celery_throttle: %d parked tasks are not as safe as throttle_park_durability = %r asks for (%s): the "
                "broker keeps their messages until they are", len(self._runs), self._durability.kind, why,
            )  # fmt: skip
