"""One delivery of one task on its way through the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from billiard.einfo import ExceptionWithTraceback  # type: ignore[attr-defined]
from billiard.exceptions import Terminated, WorkerLostError
from celery.exceptions import Ignore, Reject, Retry
from celery.worker.request import create_request_cls  # type: ignore[attr-defined]
from celery.worker.strategy import hybrid_to_proto2, proto1_to_proto2  # type: ignore[attr-defined]
from kombu.serialization import prepare_accept_content
from kombu.utils.imports import symbol_by_name

from celery_throttle.conclude import CONCLUDE
from celery_throttle.limited import RateLimited
from celery_throttle.worker.parcel import unpack

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.core.terms import Needs
    from celery_throttle.store.scripts import HolderRow
    from celery_throttle.worker.ledger import Ledger

__all__ = ["Outcome", "RequestFactory", "Run", "holders", "watch"]

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

    def timeout(soft: bool, seconds: float) -> Any:  # the pool calls it like this
        try:
            return on_timeout(soft, seconds)
        finally:
            if not soft:
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


class RequestFactory:
    """Makes requests of parked messages, as the task's strategy would, but without a broker behind them.

    Args:
        consumer: the worker's consumer; a factory serves one broker connection.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._app = consumer.app
        self._accept = prepare_accept_content(self._app.conf.accept_content)
        self._classes: dict[str, Any] = {}

    def make(
        self,
        parcel: bytes,
        *,
        redelivered: bool,
        on_ack: Callable[..., None],
        on_reject: Callable[..., None],
        conclude: str = "",
    ) -> Any:
        """Return the request of a parked message; with ``conclude`` one that ends with that other task's outcome.

        Raises:
            celery.exceptions.NotRegistered: this worker does not know the task.
        """
        message = unpack(parcel, self._accept, redelivered=redelivered)
        body, headers, decoded, utc = self._read(message)
        if conclude:
            _, _, embed = body if decoded else message.payload
            body, headers, decoded = ((conclude,), {}, embed), {**headers, "task": CONCLUDE}, True
        task = self._app.tasks[headers["task"]]
        return self._class(task)(
            message,
            on_ack=on_ack,
            on_reject=on_reject,
            app=self._app,
            hostname=self._consumer.hostname,
            eventer=self._consumer.event_dispatcher,
            task=task,
            connection_errors=self._consumer.connection_errors,
            body=body,
            headers=headers,
            decoded=decoded,
            utc=utc,
        )

    def _read(self, message: Any) -> Any:
        """Return body, headers, whether the body is decoded and whether times are UTC, for any task protocol.

        The same cases as in Celery's own strategy.
        """
        payload = message.payload
        if "args" in payload:
            return hybrid_to_proto2(message, payload)
        if "task" not in message.headers:
            return proto1_to_proto2(message, payload)
        return message.body, message.headers, False, self._app.uses_utc_timezone()

    def _class(self, task: Any) -> Any:
        if task.name not in self._classes:
            consumer = self._consumer
            self._classes[task.name] = create_request_cls(
                symbol_by_name(task.Request), task, consumer.pool, consumer.hostname, consumer.event_dispatcher,
                app=self._app,
            )  # fmt: skip
        return self._classes[task.name]
