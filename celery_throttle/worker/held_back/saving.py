"""Runs that are parked, but whose messages the broker keeps until the parked copies are safe.

How safe is up to the user (`Durability`). The server answers WAIT and WAITAOF late, and nothing else on that connection
meanwhile, so it has one of its own. A round of calls there asks what the store has of those held here, and writes
something; the WAIT that follows covers that, and with it all that was written before by anybody. So it is one and the
same server that has them and that says that they are safe, whatever failed over meanwhile.
"""

from __future__ import annotations

import logging
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from celery_throttle.errors import StoreUnavailable
from celery_throttle.store.exchange_reply import SavedAnswer
from celery_throttle.worker.celery_side.prefetch import Extra

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_throttle.core.durability import Durability
    from celery_throttle.store.calls import Store
    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.runs import Run
    from celery_throttle.worker.store_side.link import Link
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["Keeper", "Saving"]

logger = logging.getLogger(__name__)

#: Tasks that one call asks about.
_MOST_ROWS = 500
#: Messages kept here at most without taking the place of others that the broker would deliver.
_KEPT_MOST = 1000
#: Seconds until a call that the store refused is tried again, and after which trouble that goes on is told of again.
_PAUSE, _SAY_EVERY = 1.0, 60.0


class Keeper(Protocol):
    """What the gate hears; see `celery_throttle.worker.store_side.calls.Decisions`."""

    def saved(self, run: Run) -> None:
        """What was parked is safe, or nobody needs it any more."""

    def lost(self, run: Run) -> None:
        """The store has lost what was parked."""

    def keep(self, more: int) -> None:
        """So many messages more are kept unacknowledged."""


class _Round:
    """What is asked of the store at one time.

    Attributes:
        there: the runs that it has.
    """

    def __init__(self, calls: int) -> None:
        self._unanswered = calls
        self.there: list[Run] = []

    def answered(self) -> bool:
        """One more call has its answer; whether all have."""
        self._unanswered -= 1
        return self._unanswered == 0


class Saving:
    """Holds runs in the state ``SAVING``; all on the loop.

    Args:
        store: builds the calls.
        durability: what is waited for.
        gate: hears what came of it.
        connect: makes the connection, given who hears of what it brings.
        loop: everything happens on it.
        timekeeper: for trying again.

    Attributes:
        link: the connection.
    """

    def __init__(
        self,
        store: Store,
        durability: Durability,
        gate: Keeper,
        connect: Callable[[Saving], Link],
        loop: Loop,
        timekeeper: Timekeeper,
    ) -> None:
        self._store, self._durability, self._gate = store, durability, gate
        self._loop, self._timekeeper = loop, timekeeper
        self._held: dict[Run, None] = {}
        self._more = Extra(gate.keep, _KEPT_MOST)
        self._round: _Round | None = None
        self._paused = False
        self._said_at: float | None = None  # that they are not safe; None while they are
        self.link = connect(self)
        loop.every_turn(self.tick)

    @property
    def held(self) -> tuple[Run, ...]:
        """Those that are not safe yet."""
        return tuple(self._held)

    def hold(self, run: Run) -> None:
        """Keep one that was parked."""
        self._held[run] = None
        self._more.hold(len(self._held))

    def forget(self) -> list[Run]:
        """The broker will deliver again what is held; return it."""
        held = list(self._held)
        self._held.clear()
        self._more.forget()
        return held

    def tick(self) -> None:
        """Begin a round, if there is something to ask."""
        if self._held and self._round is None and self.link.up and not self._paused:
            self._begin()

    @property
    def settled(self) -> bool:
        """Whether there is nothing to wait for: all are safe, or the store refuses."""
        return self._paused or not self._held

    @property
    def timeout(self) -> float:
        """Seconds that one try takes at most."""
        return self._durability.timeout

    def hurry(self) -> None:
        """The worker stops: try now, while the broker is there to be told."""
        self._paused = False
        self.link.hurry()

    def say_left(self) -> None:
        """The worker stops, and what is held still stays at the broker."""
        if self._held:
            logger.warning(
                "celery_throttle: this worker stops, and %d parked tasks are not safe: the broker keeps their messages",
                len(self._held),
            )

    def broken(self, error: Exception) -> None:
        """The connection broke: ask again on the next one, which may be to another server."""
        logger.debug("celery_throttle: lost the connection that waits for durability: %s", error)
        self._round = None

    def _begin(self) -> None:
        runs = list(self._held)
        pieces = [runs[first : first + _MOST_ROWS] for first in range(0, len(runs), _MOST_ROWS)]
        self._round = asked = _Round(len(pieces))
        for piece in pieces:
            call = self._store.saved([run.delivery for run in piece])
            self.link.send(call, partial(self._looked, asked, piece))

    def _looked(self, asked: _Round, runs: Sequence[Run], raw: Any) -> None:
        if asked is not self._round or isinstance(raw, StoreUnavailable):
            return
        if isinstance(raw, Exception):
            self._refused(raw)
            return
        for run, answer in zip(runs, raw, strict=True):
            if answer == SavedAnswer.THERE:
                asked.there.append(run)
            elif self._let_go(run):
                (self._gate.saved if answer == SavedAnswer.DONE else self._gate.lost)(run)
        if not asked.answered():
            return
        if asked.there:
            self.link.wait(self._durability.command, self._durability.timeout, partial(self._waited, asked))
        else:
            self._round = None

    def _waited(self, asked: _Round, raw: Any) -> None:
        if asked is not self._round or isinstance(raw, StoreUnavailable):
            return
        if isinstance(raw, Exception):
            self._refused(raw)
            return
        self._round = None
        if not self._durability.reached(raw):
            self._say(f"{self._durability.missed(raw)} after {self._durability.timeout:g} s")
            return
        if self._said_at is not None:
            self._said_at = None
            logger.info("celery_throttle: what is parked is safe again")
        for run in asked.there:
            if self._let_go(run):
                self._gate.saved(run)

    def _refused(self, error: Exception) -> None:
        self._round = None
        self._say(f"the store refuses: {error}")
        self._paused = True
        self._timekeeper.later(_PAUSE, lambda: self._loop.post(self._go_on))

    def _go_on(self) -> None:
        self._paused = False

    def _let_go(self, run: Run) -> bool:
        """Whether it was held; from now on it is not."""
        if run not in self._held:
            return False
        del self._held[run]
        self._more.hold(len(self._held))
        return True

    def _say(self, why: str) -> None:
        if self._said_at is None or monotonic() - self._said_at >= _SAY_EVERY:
            self._said_at = monotonic()
            logger.warning(
                "celery_throttle: %d parked tasks are not as safe as throttle_park_durability = %r asks for (%s): the "
                "broker keeps their messages until they are", len(self._held), self._durability.kind, why,
            )  # fmt: skip
