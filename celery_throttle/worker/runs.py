"""One delivery of one task on its way through the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from billiard.einfo import ExceptionWithTraceback  # type: ignore[attr-defined]
from billiard.exceptions import Terminated, WorkerLostError
from celery.exceptions import Ignore, Reject, Retry

from celery_throttle.limited import RateLimited

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.core.terms import Needs
    from celery_throttle.store.scripts import HolderRow
    from celery_throttle.worker.ledger import Ledger

__all__ = ["Outcome", "Run", "holders", "watch"]

#: As in common.lua.
Outcome = Literal["done", "failed", "retry", "again", "never", "requeue", "return", "lost"]


class Run:
    """A request, and what the gate knows of it.

    Attributes:
        request: Celery's request.
        needs: what it takes of its limits.
        ledger: of their group; not set if it needs nothing.
        lock: what it does with its identity lock, as the store wants it; "" if it needs none.
        nonce: names this delivery as a holder.
        stored: whether the store keeps the message, because it was parked and resumed.
        job: what the pool made of it.
        permit: whether the store has been asked for a permit with this nonce, so that one may have to be given back.
        requeue: whether the task was rejected to be delivered again.
        lost: whether its lease was lost while it ran.
        refusals: how often it could not be parked, because as many wait as may.
    """

    __slots__ = (
        "job",
        "ledger",
        "lock",
        "lost",
        "needs",
        "nonce",
        "permit",
        "refusals",
        "request",
        "requeue",
        "stored",
    )

    request: Any
    ledger: Ledger

    def __init__(self, request: Any, needs: Needs, nonce: str = "", *, stored: bool = False) -> None:
        self.request, self.needs, self.nonce, self.stored = request, needs, nonce, stored
        self.permit = stored
        self.lock = ""
        self.job: Any = None
        self.requeue = self.lost = False
        self.refusals = 0

    @property
    def guarded(self) -> bool:
        """Whether it needs the store's word to run."""
        return bool(self.needs.pools) or bool(self.lock)

    def fence(self, token: int) -> None:
        """It has its lock: let the body see the fencing token."""
        self.request.request_dict["fencing_token"] = token

    @property
    def attempt(self) -> int:
        """How many retries came before; tells a retry from a second delivery of the same message."""
        return int(self.request.request_dict.get("retries") or 0)


def holders(runs: list[Run]) -> list[HolderRow]:
    """Return what the store has to know of each run that holds a permit, or wants one."""
    return [
        (run.request.id, run.nonce, run.needs.pool, run.needs.declared, run.attempt, run.lock, run.needs.more)
        for run in runs
    ]


def watch(request: Any, ended: Callable[[Outcome], None], limited: Callable[[RateLimited], None]) -> None:
    """Call back when the pool is through with a request, however it ends.

    Args:
        request: Celery's request.
        ended: called when it has ended.
        limited: called instead, and in place of what Celery does, if it raised `RateLimited`.

    The class that Celery generates for requests replaces ``on_success`` without calling what it replaces, so the
    request itself is what we can wrap. A call may come more than once and from any thread.
    """
    on_success, on_failure, on_timeout = request.on_success, request.on_failure, request.on_timeout

    def success(result: Any, **kwargs: Any) -> Any:
        failed, value, _ = result
        if failed and isinstance(error := _raised(value.exception), RateLimited):
            return limited(error)
        try:
            return on_success(result, **kwargs)
        finally:
            ended(_outcome(value.exception) if failed else "done")

    def failure(exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return on_failure(exc_info, *args, **kwargs)
        finally:
            ended(_outcome(exc_info.exception))

    def timeout(*args: Any, **kwargs: Any) -> Any:  # (soft, timeout), which one pool gives by name, another does not
        try:
            return on_timeout(*args, **kwargs)
        finally:
            if not (args[0] if args else kwargs["soft"]):
                ended("failed")

    request.on_success, request.on_failure, request.on_timeout = success, failure, timeout


def _raised(error: BaseException) -> BaseException:
    return error.exc if isinstance(error, ExceptionWithTraceback) else error


def _outcome(error: BaseException) -> Outcome:
    error = _raised(error)
    if isinstance(error, Retry):
        return "retry"
    if isinstance(error, (Ignore, Reject, Terminated, WorkerLostError)) or not isinstance(error, Exception):
        return "again"
    return "failed"
