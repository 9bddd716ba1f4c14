"""Make requests of parked messages, as the consumer makes them of the broker's messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from celery.exceptions import NotRegistered
from celery.worker import state
from celery.worker.strategy import default, hybrid_to_proto2, proto1_to_proto2  # type: ignore[attr-defined]
from kombu.serialization import prepare_accept_content

from celery_throttle.store.parcel import unpack
from celery_throttle.tasks.ours import CONCLUDE
from celery_throttle.tasks.registry import dedups_of, policies_of
from celery_throttle.worker.celery_side.stand_in import StandIn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Declined", "RequestFactory", "sender_of"]


class Declined(Exception):
    """The task's own strategy did not pass the message on, because the task was revoked, say."""


class RequestFactory:
    """Makes requests of parked messages by the consumer's present strategies, but without a broker behind them.

    Celery's own strategy has a private class for its requests. We use that class, because the strategy itself would
    report a second time that the message was received. A strategy of the user's is made a second time, for a consumer
    that returns the request to us, so this strategy runs twice for each parked message.

    Args:
        consumer: the worker's consumer.
    """

    def __init__(self, consumer: Any) -> None:
        self.consumer, self._app = consumer, consumer.app
        self._accept = prepare_accept_content(self._app.conf.accept_content)
        self._catchers: dict[str, _Catcher] = {}  # by task

    def follow(self) -> None:
        """Make our copies of the user's strategies, because the consumer has (other) strategies and time limits now."""
        for name, strategy in self.consumer.strategies.items():
            if _request_class(strategy) is None and name in policies_of(self._app).keys() | dedups_of(self._app).keys():
                self._catcher(name, strategy)

    def make(
        self,
        parcel: bytes,
        *,
        redelivered: bool,
        on_ack: Callable[..., None],
        on_reject: Callable[..., None],
        conclude: str = "",
        lost: bool = False,
    ) -> Any:
        """Return the request of a parked message; with ``conclude`` one that ends with that other task's outcome.

        ``lost``: the other task has succeeded, and its result could not be kept.

        Raises:
            celery.exceptions.NotRegistered: the task is not registered in this worker.
            Declined: the task's strategy does not pass the message on.
        """
        message = unpack(parcel, self._accept, redelivered=redelivered)
        body, headers, decoded, utc = self._read(message)
        if conclude:
            _, _, embed = body if decoded else message.payload
            args = (conclude, headers["task"], lost)
            body, headers, decoded = (args, {}, embed), {**headers, "task": CONCLUDE}, True
        strategy = self.consumer.strategies.get(headers["task"])
        if strategy is None:
            raise NotRegistered(headers["task"])
        request_class = _request_class(strategy)
        if request_class is None:
            return self._catcher(headers["task"], strategy).request(message, on_ack, on_reject)
        return request_class(
            message,
            on_ack=on_ack,
            on_reject=on_reject,
            app=self._app,
            hostname=self.consumer.hostname,
            eventer=self.consumer.event_dispatcher,
            task=self._app.tasks[headers["task"]],
            connection_errors=self.consumer.connection_errors,
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

    def _catcher(self, name: str, strategy: Any) -> _Catcher:
        known = self._catchers.get(name)
        if known is None or known.theirs is not strategy:
            known = self._catchers[name] = _Catcher(self.consumer, self._app.tasks[name], strategy)
        return known


def sender_of(parcel: bytes) -> Any:
    """Return a stand-in for the request of a message, for the result backend; None if the message is unreadable.

    For messages of which no request can be made. As in Celery's own consumer, it has the sender's reply address, which
    some backends send results to.
    """
    try:
        message = unpack(parcel, None, redelivered=False)
    except Exception:  # noqa: BLE001 - an unreadable message raises anything
        return None
    about, sent = message.properties, message.headers
    return SimpleNamespace(
        id=sent.get("id"), name=sent.get("task"), task=sent.get("task"), root_id=sent.get("root_id"),
        chord=None, errbacks=None,
        argsrepr=sent.get("argsrepr"), kwargsrepr=sent.get("kwargsrepr"),
        correlation_id=about.get("correlation_id"), reply_to=about.get("reply_to"),
    )  # fmt: skip


def _request_class(strategy: Any) -> Any:
    """Return the class that Celery's own strategy makes requests of, None if this is another strategy."""
    code = getattr(strategy, "__code__", None)
    if code is None or strategy.__module__ != default.__module__ or "Req" not in code.co_freevars:
        return None
    return strategy.__closure__[code.co_freevars.index("Req")].cell_contents


class _Catcher:
    """Makes requests by a strategy of the user's, which it gives to a consumer that starts nothing.

    Args:
        consumer: the worker's consumer.
        task: the task of the strategy.
        theirs: the strategy that the consumer made for this task.
    """

    def __init__(self, consumer: Any, task: Any, theirs: Any) -> None:
        self.theirs = theirs
        self._caught: Any = None
        self._ours = task.start_strategy(consumer.app, StandIn(consumer, self._catch))

    def _catch(self, request: Any) -> None:
        self._caught = request

    def request(self, message: Any, on_ack: Any, on_reject: Any) -> Any:
        """Return the request that the strategy would have passed on.

        Raises:
            Declined: the strategy passed no request on.
        """
        self._caught = None
        payload = None if "task" in message.headers else message.payload
        self._ours(message, payload, on_ack, on_reject, ())
        request, self._caught = self._caught, None
        if request is None:
            raise Declined
        _uncount(request)
        return request


def _uncount(request: Any) -> None:
    """Remove a request from Celery's lists, where a strategy puts it: whether the task runs is not decided yet."""
    state.reserved_requests.discard(request)
    if hasattr(state, "scheduled_requests"):  # since Celery 5.7
        state.scheduled_requests.discard(request)
    task_id: str = request.id
    if state.requests.get(task_id) is request:
        del state.requests[task_id]
