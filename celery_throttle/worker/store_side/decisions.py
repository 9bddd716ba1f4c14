"""The decisions of the store about runs, and the rows of a reply that they come from."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Protocol

from celery_throttle.errors import UnusableMessage
from celery_throttle.store.exchange_reply import Answer
from celery_throttle.worker.runs import State
from celery_throttle.worker.user_code import safely

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.store.exchange_reply import Grant, Reply, Withdrawn
    from celery_throttle.worker.runs import Run
    from celery_throttle.worker.store_side.outbox import Batch, Outbox

__all__ = ["PAUSE", "Decisions", "blame", "deliver", "set_aside"]

logger = logging.getLogger(__name__)

#: Seconds until the next try of a store that refused a call (out of memory, read-only), or of the result backend.
PAUSE = 1.0


class Decisions(Protocol):
    """The methods of the gate that the store's answers call; most of them get the name of the group of limits."""

    def granted(self, run: Run, fencing_token: int) -> None:
        """Start a run that has its permits, and its lock if it needs one."""

    def refused(self, run: Run) -> None:
        """Park a run that gets no permits now."""

    def broke(self, run: Run, error: Exception) -> None:
        """End a run for which the gate could not carry out a decision, or which the store refuses: its task fails."""

    def broke_off(self, grant: Grant, group: str, error: Exception) -> None:
        """End a parked task that the gate could not start: it fails."""

    def parked(self, run: Run) -> None:
        """Acknowledge the broker's message of a parked run, as soon as the store's copy is safe."""

    def is_copy(self, run: Run, *, has_run: bool) -> None:
        """Acknowledge the broker's message of a run that is a copy: another one has run, or is parked."""

    def saved(self, run: Run) -> None:
        """Acknowledge the broker's message of a run whose parked copy is safe, or is needed no more."""

    def lost(self, run: Run) -> None:
        """Take a run in again whose parked copy the store has lost; the broker's message is still here."""

    def not_parked(self, run: Run, why: State) -> None:
        """Hold a run that may not be parked now: its line is full, or another publication of its task id goes first."""

    def sent_back(self, run: Run) -> None:
        """Forget a run that raised `RateLimited`: the store has its message and its permits."""

    def put_off(self, runs: list[Run]) -> None:
        """Hold the runs of a call that the store refused, without effect, until its pause is over."""

    def resumed(self, grant: Grant, group: str) -> None:
        """Start a parked task here."""

    def withdrawn(self, each: Withdrawn) -> None:
        """Report a revoked task that has left its line."""

    def answered(self, reply: Reply, group: str) -> None:
        """Take the rest of a reply, after all of its decisions."""

    def hint(self, text: str, group: str) -> None:
        """Take a hint that a queue has a task to start, or that a bucket has a line."""

    def store_up(self, group: str) -> None:
        """End an outage: the store answers (again)."""

    def store_lost(self, error: Exception, group: str) -> None:
        """Begin an outage: the connection broke."""

    def store_unreachable(self, error: Exception, group: str) -> None:
        """Go on with an outage: connecting failed."""


def deliver(gate: Decisions, group: str, batch: Batch, reply: Reply) -> None:
    """Call the gate for each row of a reply; an error in one call ends its task, and the others are still delivered."""
    handlers: dict[int, Callable[[Run], None]] = {
        Answer.MUST_PARK: gate.refused,
        Answer.PARKED: gate.parked,
        Answer.HAS_RUN: partial(gate.is_copy, has_run=True),
        Answer.CROWDED: partial(gate.not_parked, why=State.CROWDED),
        Answer.SENT_BACK: gate.sent_back,
        Answer.IS_COPY: partial(gate.is_copy, has_run=False),
        Answer.ID_IN_USE: partial(gate.not_parked, why=State.ID_IN_USE),
    }
    for run, answer in zip(batch.arrived, reply.arrived, strict=True):
        if handler := handlers.get(answer):
            # Else the store has the task, or its end.
            undecided = answer in (Answer.MUST_PARK, Answer.CROWDED, Answer.ID_IN_USE)
            safely(handler, run, broke=partial(gate.broke, run) if undecided else None)
        else:
            safely(gate.granted, run, answer if answer > max(Answer) else 0, broke=partial(gate.broke, run))
    for grant in reply.grants:
        safely(gate.resumed, grant, group, broke=partial(gate.broke_off, grant, group))
    for each in reply.withdrawn:
        safely(gate.withdrawn, each)


def set_aside(outbox: Outbox, reply: Reply) -> None:
    """Have the store set the granted tasks aside whose records cannot be read."""
    for task, why in reply.unread:
        logger.error("celery_throttle: the record of parked task %s cannot be read, it is set aside: %s", task, why)
        outbox.unread(task, why)


def blame(gate: Decisions, row: Batch, error: Exception) -> None:
    """End the task of a row that the store refuses, or that cannot be written; a report about a task is dropped."""
    for run in row.arrived:
        why = UnusableMessage(f"Task {run.request.name}: the store refuses what its message has: {error}")
        safely(gate.broke, run, why)
    for report in (*(f"{each.event} of {each.task}" for each in row.exchange.changed), *row.exchange.gone):
        logger.error("celery_throttle: the store refuses a report (%s), which is dropped: %s", report, error)
