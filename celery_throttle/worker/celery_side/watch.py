"""Call back with the result when the run of a request ends, in any way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback  # type: ignore[attr-defined]
from billiard.exceptions import Terminated, WorkerLostError
from celery.exceptions import Ignore, Reject, Retry

from celery_throttle.core.facts import Result
from celery_throttle.tasks.rate_limited import RateLimited

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.worker.runs import Run

__all__ = ["unwatch", "watch"]

#: Methods that Celery calls from 5.7 on when a child is lost, each with the result of the run if it returns True.
_LOST = {"_success_was_stored": Result.SUCCESS, "_retry_worker_lost": Result.RETRY}


def watch(run: Run, ended: Callable[[Result], None], limited: Callable[[RateLimited], None]) -> None:
    """Call back when the pool is through with a run.

    Args:
        run: the run to watch.
        ended: called when the run has ended.
        limited: called instead, and instead of Celery's own function, if the run raised `RateLimited`.

        The class that Celery generates for requests replaces ``on_success`` without calling the replaced method. So we
        wrap the methods of the request itself. A callback may be called more than once and from any thread.
    """
    request = run.request
    on_success, on_failure, on_reject = request.on_success, request.on_failure, request.reject

    def success(result: Any, **kwargs: Any) -> Any:
        run.body_ended = True
        if isinstance(result, ExceptionInfo):  # a pool without processes has this for a body that exits
            return failure(result)
        failed, value, _ = result
        if failed is False:  # a killed greenlet gives False, a successful run gives 0
            return ended(Result.NOTHING)
        if failed and isinstance(error := _raised(value.exception), RateLimited):
            return limited(error)
        try:
            return on_success(result, **kwargs)
        finally:
            ended(_result(value.exception) if failed else Result.SUCCESS)

    def failure(exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        run.body_ended = True
        made = _note_what_is_made_of_a_loss(request)  # only now, because most runs end without a failure
        result = _result(exc_info.exception)
        try:
            return on_failure(exc_info, *args, **kwargs)
        except Exception:
            result = result if request.acknowledged else Result.NOTHING  # no result stored: the message comes again
            raise
        finally:
            ended(made[-1] if made else result)

    def reject(requeue: bool = False) -> Any:
        run.requeue = run.requeue or (requeue and not request.acknowledged)
        return on_reject(requeue=requeue)

    request.on_success, request.on_failure = success, failure
    request.on_timeout = _timeout(request, ended)
    request.reject = reject


def _timeout(request: Any, ended: Callable[[Result], None]) -> Callable[..., Any]:
    on_timeout = request.on_timeout

    def timeout(*args: Any, **kwargs: Any) -> Any:  # (soft, timeout), by name in one pool, by place in others
        result = Result.FAILURE
        try:
            return on_timeout(*args, **kwargs)
        except Exception:
            result = result if request.acknowledged else Result.NOTHING
            raise
        finally:
            if not (args[0] if args else kwargs["soft"]):
                ended(result)

    return timeout


def _note_what_is_made_of_a_loss(request: Any) -> list[Result]:
    """Return a list that gets the result of a run whose child was lost, if that result is no failure."""
    made: list[Result] = []

    def noting(asked: Callable[..., Any], result: Result) -> Callable[..., Any]:
        def ask(*args: Any) -> Any:
            if answer := asked(*args):
                made.append(result)
            return answer

        return ask

    for name, result in _LOST.items():
        if asked := getattr(request, name, None):
            setattr(request, name, noting(asked, result))
    return made


def unwatch(request: Any) -> None:
    """Undo `watch` when the run is over.

    The request refers to our functions, and they refer to the request: only the garbage collector would free them.
    """
    attributes = vars(request)
    for name in ("on_success", "on_failure", "on_timeout", "reject", *_LOST):
        attributes.pop(name, None)


def _raised(error: BaseException) -> BaseException:
    return error.exc if isinstance(error, ExceptionWithTraceback) else error


def _result(error: BaseException) -> Result:
    error = _raised(error)
    if isinstance(error, Retry):
        return Result.RETRY
    if isinstance(error, (Ignore, Reject, Terminated, WorkerLostError)) or not isinstance(error, Exception):
        return Result.NOTHING
    return Result.FAILURE
