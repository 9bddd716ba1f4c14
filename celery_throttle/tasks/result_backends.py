"""Check that the result backend of a singleton can return the outcome of one call to other callers.

``rpc://`` sends each result to the caller that published the task. Neither another caller nor a worker can read it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from celery_throttle.core.dedup import Dedup

__all__ = ["answers_caller_only", "cannot_read", "check_result_backend"]

#: A duplicate of these is not published: its caller waits for the result of another call.
_SHARED_RESULT = ("return_existing", "replace")


def answers_caller_only(backend: Any) -> bool:
    """Return whether the backend sends a result to the caller alone."""
    rpc = sys.modules.get("celery.backends.rpc")  # loaded where it is used
    return rpc is not None and isinstance(backend, rpc.RPCBackend)


def cannot_read(task_name: str, what: str) -> ConfigurationError:
    """Return the error of a task whose result another caller would have to read."""
    return ConfigurationError(
        f"Task {task_name}: {what} cannot work with result_backend = 'rpc://', which sends a result to the caller that "
        f"published the task: no other caller can read it. Set result_backend = 'redis://host:6379/1', or write "
        f"on_conflict='raise' or ignore_result=True"
    )


def check_result_backend(task: Any, dedup: Dedup, *, ignores_result: bool) -> None:
    """Refuse a singleton whose duplicates would wait for a result that they cannot get.

    Raises:
        ConfigurationError: with the fix.
    """
    if not ignores_result and dedup.on_conflict in _SHARED_RESULT and answers_caller_only(task.backend):
        raise cannot_read(task.name, f"on_conflict={dedup.on_conflict!r}")
