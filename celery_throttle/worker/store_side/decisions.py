"""What the store decides about runs, and which row of a reply says it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from celery_throttle.store.exchange_reply import Answer, ParkAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.store.exchange_reply import Grant, Reply, Withdrawn
    from celery_throttle.worker.runs import Run
    from celery_throttle.worker.store_side.outbox import Batch

__all__ = ["Decisions", "tell_all"]

logger = logging.getLogger(__name__)


class Decisions(Protocol):
    """What the gate hears; most of it names the group of limits that it is about."""

    def granted(self, run: Run, fencing_token: int) -> None:
        """It has its permits, and its lock if it needs one."""

    def refused(self, run: Run) -> None:
        """It has to be parked."""

    def parked(self, run: Run) -> None:
        """The store has its message: the broker's can be acknowledged, as soon as that is safe."""

    def has_run(self, run: Run) -> None:
        """The store knows that the task has run: the broker's message can be acknowledged."""

    def saved(self, run: Run) -> None:
        """What was parked is safe, or nobody needs it any more: the broker's message can be acknowledged."""

    def lost(self, run: Run) -> None:
        """The store has lost what was parked, and the broker's message is here still."""

    def crowded(self, run: Run) -> None:
        """It was not parked: as many wait for its limit as may."""

    def sent_back(self, run: Run) -> None:
        """The store has the message of a task that had begun, and its permits."""

    def put_off(self, runs: list[Run], go_on: Callable[[], None]) -> None:
        """The store is there but refused a call, which had no effect: ask again after a while."""

    def resumed(self, grant: Grant, group: str) -> None:
        """A parked task starts here."""

    def withdrawn(self, each: Withdrawn) -> None:
        """A revoked task has left its line."""

    def answered(self, reply: Reply, group: str) -> None:
        """After all of the above, what else a reply said."""

    def hint(self, text: str, group: str) -> None:
        """Somebody says that a queue has something to start, or that a bucket has a line."""

    def store_up(self, group: str) -> None:
        """The store answers (again)."""

    def store_lost(self, error: Exception, group: str) -> None:
        """The connection broke."""

    def store_unreachable(self, error: Exception, group: str) -> None:
        """Connecting failed."""


def tell_all(gate: Decisions, group: str, batch: Batch, reply: Reply) -> None:
    """Say what became of each, one by one: an error with one must not keep the others from hearing."""
    hears = {
        ParkAnswer.CROWDED: gate.crowded,
        ParkAnswer.PARKED: gate.parked,
        ParkAnswer.HAS_RUN: gate.has_run,
    }
    for run, answer in zip(batch.asked, reply.asked, strict=True):
        if answer == Answer.MUST_PARK:
            _safely(gate.refused, run)
        elif answer == Answer.KNOWN:
            _safely(gate.parked, run)
        elif answer == Answer.HAS_RUN:
            _safely(gate.has_run, run)
        else:
            _safely(gate.granted, run, answer if answer > max(Answer) else 0)
    for run, answer in zip(batch.parked, reply.parked, strict=True):
        _safely(hears[ParkAnswer(answer)], run)
    for run in batch.back:
        _safely(gate.sent_back, run)
    for grant in reply.grants:
        _safely(gate.resumed, grant, group)
    for each in reply.withdrawn:
        _safely(gate.withdrawn, each)


def _safely(function: Callable[..., None], *args: Any) -> None:
    try:
        function(*args)
    except Exception:
        logger.exception("celery_throttle: error in %r", function)
