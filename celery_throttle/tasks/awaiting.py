"""Find tasks that are ``async def`` where no worker awaits them.

Celery calls a body and takes what it returns for the result: of ``async def`` that is a coroutine, and nothing of the
body has run.
"""

from __future__ import annotations

import inspect
import os
import warnings
from typing import Any

from celery import Task, concurrency
from celery.app import trace

from celery_throttle.errors import NotAwaited

__all__ = ["not_awaited", "warn_if_not_awaited"]

#: Packages that replace Celery's tracer by one that awaits bodies, in any pool.
_AWAITING_TRACERS = ("celery_aio_pool",)
#: The lines for which Python has shown the warning.
_shown: dict[Any, Any] = {}


def not_awaited(name: str, cls: type[Any], app: Any, pool: Any = None) -> str:
    """Return a sentence with the fix for a task that is ``async def`` and is not awaited, "" for any other.

    Args:
        name: the task's name.
        cls: the task's class; one with a ``__call__`` of its own may await the body there.
        app: the task's app.
        pool: the class of the worker's pool; None: as far as settings and environment name it.
    """
    if not inspect.iscoroutinefunction(_body(cls)) or cls.__call__ is not Task.__call__ or _awaits(app, pool):
        return ""
    return (
        f"Task {name} is async def, which Celery's own pools do not await: nothing of it runs. "
        f"Write def, and asyncio.run() inside, or name a pool that awaits it in the setting worker_pool"
    )


def warn_if_not_awaited(name: str, cls: type[Any], app: Any) -> None:
    """Warn at the line of a task that is ``async def`` and is not awaited."""
    if text := not_awaited(name, cls, app):
        code = _body(cls).__code__
        warnings.warn_explicit(text, NotAwaited, code.co_filename, code.co_firstlineno, cls.__module__, _shown)


def _body(cls: type[Any]) -> Any:
    """Return the function that a task runs, without what Celery puts around it (``autoretry_for``, ``pydantic``).

    A decorator of the user's may await what it wraps.
    """
    run: Any = cls.run
    while hasattr(run, "__wrapped__") and run.__globals__["__name__"].startswith("celery."):
        run = run.__wrapped__
    return run


def _awaits(app: Any, pool: Any) -> bool:
    """Return whether a pool that is not Celery's runs the tasks, or a tracer that awaits them."""
    if trace.build_tracer.__module__.startswith(_AWAITING_TRACERS):
        return True
    if pool is None:
        pool = "custom" if os.environ.get("CELERY_CUSTOM_WORKER_POOL") else app.conf.worker_pool
    aliases: dict[str, str] = concurrency.ALIASES  # type: ignore[attr-defined]
    where = aliases.get(pool, pool) if isinstance(pool, str) else pool.__module__
    return not str(where).startswith("celery.concurrency.")
