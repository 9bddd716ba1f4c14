"""Have the store of one group take revoked tasks out of their lines: those that it has.

A worker may learn of thousands at once: from its neighbours when it starts, for example. The store has few of them, and
a row that withdraws a task is work, so that a call has few such rows. So the store is asked first which tasks it has.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from celery_throttle.errors import StoreUnavailable
from celery_throttle.store.calls import MOST_ASKED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_throttle.worker.store_side.calls import Calls

__all__ = ["WithdrawingFrom"]

#: The most tasks that are reported at once, without a question.
_FEW = 8


class WithdrawingFrom:
    """Withdraws tasks from the store of one group.

    Args:
        calls: the calls of this worker to the group.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._tasks: list[str] = []  # to ask about
        self._asks = False

    def withdraw(self, tasks: Sequence[str]) -> None:
        """Withdraw tasks; go on with earlier ones about which the store, being away, was not asked yet."""
        if len(tasks) <= _FEW:
            self._calls.outbox.revoked(tasks)
        else:
            self._tasks += tasks
        self._ask()

    def _ask(self) -> None:
        if self._tasks and not self._asks and self._calls.link.up:
            self._asks = True
            page = self._tasks[:MOST_ASKED]
            self._calls.link.send(self._calls.store.known(page), partial(self._answered, page))

    def _answered(self, page: list[str], raw: Any) -> None:
        self._asks = False
        if isinstance(raw, StoreUnavailable):
            return
        del self._tasks[: len(page)]
        refused = isinstance(raw, Exception)
        self._calls.outbox.revoked([task for task, has in zip(page, page if refused else raw, strict=True) if has])
        self._ask()
