"""End a task that does not run, because another call of it has the identity lock."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery_throttle.errors import DuplicateTask
from celery_throttle.tasks.publish import skipped
from celery_throttle.worker.celery_side.failing import fail
from celery_throttle.worker.reported.signals_and_events import report_duplicate

if TYPE_CHECKING:
    from celery_throttle.store.exchange_reply import LockState

__all__ = ["end_duplicate"]

logger = logging.getLogger(__name__)


def end_duplicate(request: Any, lock: LockState) -> None:
    """End a request that must not run: store the reason as its result, and end its canvas.

    Args:
        request: the request of the duplicate.
        lock: the state of the lock, with its verdict: ``duplicate``, ``skip``, ``replaced`` or ``done``.
    """
    logger.info("Task %s[%s] does not run (%s): %s has its lock", request.name, request.id, lock.verdict, lock.first)
    if lock.verdict == "duplicate":
        fail(request, DuplicateTask(request.name, lock.first))
    elif lock.verdict in ("replaced", "skip"):
        why = "replaced" if lock.verdict == "replaced" else skipped(request.name, lock.first)
        request._announce_revoked(why, False, None, False)  # noqa: SLF001 - as Celery reports a revoked task
    # "done": this is the same task, delivered again, and the first delivery has stored its outcome.
    request.acknowledge()
    if lock.verdict != "done":
        report_duplicate(request, lock.first, lock.verdict)
