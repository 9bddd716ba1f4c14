"""The fencing token of a run: the number that came with its identity lock, or the reason why there is none."""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING, Any

from celery_throttle.errors import NoFencingToken
from celery_throttle.settings import settings_of
from celery_throttle.tasks.registry import dedup_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.core.settings import Settings

__all__ = ["token_of", "token_or_none"]

#: Tokens of eager runs. Microseconds, as in the store, so these tokens are larger than those of an earlier process.
_eager_tokens: Iterator[int] = count(time.time_ns() // 1000)


def token_of(task: Any) -> int:
    """Return the token of the present run.

    Raises:
        NoFencingToken: the run has none.
    """
    token = token_or_none(task)
    if token is None:
        raise NoFencingToken(str(task.name), _why(task))
    return token


def token_or_none(task: Any) -> int | None:
    """Return the token of the present run, None if the run has none."""
    request = task.request_stack.top
    if request is None or dedup_of(task) is None:
        return None
    token: int | None = request.get("fencing_token")
    no_worker = request.is_eager or request.called_directly
    if token is None and no_worker and task.app.conf.task_always_eager:
        token = next(_eager_tokens)
        request.update(fencing_token=token)  # one token for the whole run
    return token


def _why(task: Any) -> str:
    """Return why a run has no token, with the fix."""
    request = task.request_stack.top
    if dedup_of(task) is None:
        return "only a singleton has a lock: write singleton=True at the task"
    if request is None:
        return "this is outside of a run: read it in the body of the task"
    if request.is_eager:
        return "apply() takes no lock: write delay(), or in tests set task_always_eager = True"
    if request.called_directly:
        return "it was called as a function, which takes no lock: write delay()"
    return _why_in_worker(settings_of(task.app))


def _why_in_worker(settings: Settings) -> str:
    if not settings.enabled:
        return "no lock is taken while throttle_enabled is False: set throttle_enabled = True"
    if settings.on_store_error == "run":
        return (
            "the store was out of reach, and throttle_on_store_error is 'run': set throttle_on_store_error = 'hold', "
            "or try again later with autoretry_for=(NoFencingToken,)"
        )
    return "the worker started it without its lock: see that its log has no error of celery_throttle"
