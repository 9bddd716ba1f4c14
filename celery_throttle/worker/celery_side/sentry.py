"""Name the task in what Sentry reports of an error that the worker's main process raises for it.

Celery logs such an error, and Sentry makes an event of the log line, without the task. All errors that are raised here
have the same trace, so Sentry would also take them for one.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["task_named"]


@contextmanager
def task_named(request: Any, error: Exception) -> Iterator[None]:
    """Give all events the task's name and id, as its own errors have, if the app has loaded Sentry; group by both."""
    sentry: Any = sys.modules.get("sentry_sdk")
    if not hasattr(sentry, "new_scope"):  # before 2.0
        yield
        return
    with sentry.new_scope() as scope:
        scope.set_transaction_name(request.name, source="task")
        scope.update_from_kwargs(
            tags={"celery_task_id": request.id},
            extras={"celery-job": {"task_name": request.name}},  # arguments may be private
            fingerprint=["celery_throttle", type(error).__name__, request.name],
        )
        yield
