"""Call code of users in a worker: a ``key=``, a receiver, a serializer, a result backend or request of their own.

Such code raises anything: a library calls ``sys.exit`` for bad input. What is no `Exception` would end a thread of the
gate, or the worker, and its message the next worker. So it becomes an error here, of the task or receiver it is about.
A program that publishes is not ours to protect: there, all of it reaches the caller.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from celery.exceptions import WorkerShutdown, WorkerTerminate
from celery.platforms import EX_FAILURE, EX_OK
from celery.worker import state

from celery_throttle.errors import ThrottleError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["WorkerStops", "call", "safely", "start_thread"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class WorkerStops(Exception):
    """Code of users has stopped the worker in Celery's own way; the task stays where its message is."""


def call(function: Callable[..., T], *args: Any) -> T:
    """Call a function that is, or calls, code of users.

    Raises:
        ThrottleError: it raised what is no `Exception`, which is the ``__cause__``.
        WorkerStops: it raised `WorkerShutdown` or `WorkerTerminate`, or the user pressed Ctrl-C, or Celery's handler
            of a signal raised an error amid it.
        Exception: any other error of the function.
    """
    try:
        return function(*args)
    except Exception as error:
        if _is_of_a_handler(error):  # it cannot end threads, says so, and is about nothing that the function does
            _stop("should_terminate", EX_FAILURE)
            raise WorkerStops(f"this worker stops: {error!r}") from error
        raise
    except BaseException as error:
        raise _as_error(error) from error


def _is_of_a_handler(error: Exception) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") != "celery.apps.worker":
        trace = trace.tb_next
    return trace is not None


def _as_error(error: BaseException) -> Exception:
    """Return the error to go on with; a worker that is to stop does so in the next turn of its consumer."""
    if isinstance(error, WorkerTerminate):
        _stop("should_terminate", error.code)
    elif isinstance(error, WorkerShutdown):
        _stop("should_stop", error.code)
    elif isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        _stop("should_stop", EX_FAILURE)  # as Celery does
    else:
        return ThrottleError(f"code of the app raised {error!r}")
    return WorkerStops(f"this worker stops: {error!r}")


def _stop(flag: str, code: Any) -> None:
    vars(state)[flag] = EX_OK if code is None else code  # Celery takes None for: go on


def safely(function: Callable[..., object], *args: Any, broke: Callable[[Exception], object] | None = None) -> None:
    """Call a function, and log its error; ``broke`` is then called with the error, in the same way."""
    try:
        call(function, *args)
    except Exception as error:
        logger.exception("celery_throttle: error in %r", function)
        if broke is not None:
            safely(broke, error)


def start_thread(run: Callable[[], object], name: str) -> threading.Thread:
    """Start a thread of the gate. If it dies the worker stops, with a status, so that its supervisor starts another."""
    thread = threading.Thread(target=_run, args=(run, name), name=name, daemon=True)
    thread.start()
    return thread


def _run(run: Callable[[], object], name: str) -> None:
    try:
        run()
    except BaseException:
        logger.critical("celery_throttle: the thread %s has died, so this worker stops", name, exc_info=True)
        _stop("should_stop", EX_FAILURE)
