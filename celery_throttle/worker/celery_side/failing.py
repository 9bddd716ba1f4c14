"""End a request with an error, and separate the errors of its message from those of a backend that is away."""

from __future__ import annotations

import logging
from functools import partial
from traceback import walk_tb
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery.backends.base import Backend
from celery.exceptions import BackendError, InvalidTaskError
from celery.worker import state
from kombu.exceptions import OperationalError, SerializationError

from celery_throttle.core.wording import one_line
from celery_throttle.worker.celery_side.sentry import task_named
from celery_throttle.worker.user_code import WorkerStops, call

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["end_unstarted", "fail", "fail_or_reject", "may_pass"]

logger = logging.getLogger(__name__)

#: The errors that a value causes, also when a backend is to store the value.
_BY_A_VALUE = (
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError),
    *(InvalidTaskError, SerializationError),
)


def may_pass(error: BaseException) -> bool:
    """Return whether a connection, the result backend or the pool has failed, so that a later try may succeed.

    A pool that takes no job raises RuntimeError. Each backend has errors of its own: an error that was raised in a
    backend counts, unless a value that was to be stored causes it. Databases call that ``DataError`` (PEP 249). A task
    that stops its worker is left to the next one.
    """
    if isinstance(error, (OSError, OperationalError, BackendError, WorkerStops)):
        return True
    if error.__cause__ is not None and not isinstance(error.__cause__, Exception):
        error = error.__cause__  # see `user_code.call`
    if isinstance(error, _BY_A_VALUE) or any(each.__name__ == "DataError" for each in type(error).__mro__):
        return False
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return isinstance(error, RuntimeError) or any(isinstance(each.f_locals.get("self"), Backend) for each in frames)


def fail_or_reject(request: Any, error: Exception) -> None:
    """End a request with an error; where no result can be stored for it, log that, and reject its message.

    Raises:
        Exception: the result backend is away, see `may_pass`.
    """
    try:
        call(fail, request, error)
    except Exception as why:
        if may_pass(why):
            raise
        logger.error(  # noqa: TRY400 - a traceback of each such message would fill the log
            "Task %r[%r] fails: %s; its result cannot be stored as usual: %r", request.name, request.id, error, why
        )
        _fail_without_links(request, error)
        state.task_ready(request)
        request.reject(requeue=False)


def _fail_without_links(request: Any, error: Exception) -> None:
    """Store a failure, if possible, without the parts of the request that may be unusable."""
    stand_in = SimpleNamespace(
        name=request.name, root_id=None, chord=None, errbacks=None, group=None,
        correlation_id=request.correlation_id, reply_to=request.reply_to,
    )  # fmt: skip
    try:
        mark = partial(request.task.backend.mark_as_failure, request=stand_in, store_result=request.store_errors)
        call(mark, request.id, error)
    except Exception as why:
        if may_pass(why):
            raise
        logger.debug("Task %r[%r] has no result: %r", request.name, request.id, why)


def end_unstarted(request: Any, dropped: str = "") -> None:
    """End a request that waited for too long, as Celery ends one that has expired; or one that an operator dropped."""
    dropped = one_line(dropped)
    logger.info("Task %s[%s] %s", request.name, request.id, dropped or "expired: it waited for too long")
    request._announce_revoked(dropped or "expired", False, None, not dropped)  # noqa: SLF001


def fail(request: Any, error: Exception) -> None:
    """End a request with an error: result, signal, event and log; acknowledge or reject its message last.

    With ``acks_late`` Celery acknowledges before it stores the result, and the result backend may be away.
    """
    rejected: list[bool] = []
    attributes = vars(request)
    deferred: dict[str, Callable[..., None]] = {
        "acknowledge": lambda: None,
        "reject": lambda requeue=False: rejected.append(requeue),
    }
    before = {name: attributes[name] for name in deferred if name in attributes}
    attributes.update(deferred)
    try:
        raise error
    except type(error):
        with task_named(request, error):
            request.on_failure(ExceptionInfo())
    finally:
        for name in deferred:
            if attributes.pop(name, None) and name in before:  # else `unwatch` has removed our function
                attributes[name] = before[name]
    if rejected:
        request.reject(requeue=rejected[-1])
    else:
        request.acknowledge()
