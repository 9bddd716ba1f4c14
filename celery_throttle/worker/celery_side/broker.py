"""The worker's connection to its broker, the queues that it consumes, and the queue of each delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_throttle.core.queues import BrokerQueue
from celery_throttle.worker.celery_side.prefetch import Prefetch
from celery_throttle.worker.celery_side.requests import RequestFactory

if TYPE_CHECKING:
    from celery_throttle.worker.runs import Run

__all__ = ["Broker", "Queues"]

_MARK = "_celery_throttle_queue"


class Broker:
    """The present connection, and the queues that are consumed on it; all on the loop.

    Args:
        code: the broker's code in the store's names of its queues.

    Attributes:
        epoch: counts the connections.
        prefetch: the number of messages that the broker may deliver.
        queues: the queues that the worker consumes; None while there is no connection.
        requests: makes requests of parked messages, as the consumer does; None before the first connection.
    """

    def __init__(self, code: str) -> None:
        self._code = code
        self.epoch = 0
        self.prefetch = Prefetch()
        self.queues: Queues | None = None
        self.requests: RequestFactory | None = None

    def connected(self, consumer: Any) -> None:
        """Read the consumer's queues: the worker consumes (again), or its queues have changed."""
        if self.queues is None or self.queues.consumer is not consumer.task_consumer:
            self.queues = Queues(consumer.task_consumer, self._code)
        if self.requests is None or self.requests.consumer is not consumer:
            self.requests = RequestFactory(consumer)
        self.requests.follow()
        self.prefetch.begin(consumer)

    def disconnected(self) -> None:
        """Count a lost connection: the broker will deliver again all messages that were not acknowledged."""
        self.epoch += 1
        self.queues = None
        self.prefetch.end()

    def delivers_again(self, run: Run) -> bool:
        """Return whether the run came with a connection that is gone."""
        return run.epoch != self.epoch


class Queues:
    """The queues of one broker connection.

    A message of AMQP has its consumer's tag, which names its queue. The brokers that kombu emulates (Redis, SQS) give
    only the route of a message. There the function that takes messages from a queue is wrapped to mark each of them.

    Args:
        consumer: Celery's task consumer, connected, before it consumes.
        broker: the code of the broker.

    Attributes:
        consumer: as given.
    """

    def __init__(self, consumer: Any, broker: str) -> None:
        self.consumer, self._broker = consumer, broker
        self._by_tag: dict[str, str] = {}
        self._begin = consumer._basic_consume  # noqa: SLF001 - the only call with both tag and queue
        consumer._basic_consume = self._consume  # noqa: SLF001
        for name, tag in getattr(consumer, "_active_tags", {}).items():
            self._note(name, tag)

    @property
    def names(self) -> tuple[str, ...]:
        """The queues that the worker consumes now, as the store writes them."""
        return tuple(self._text(name) for name in self._names())

    def queue_of(self, message: Any) -> str:
        """Return the queue that the message came from, as the store writes it."""
        return self._text(self._taken_from(message))

    def _text(self, name: str) -> str:
        return BrokerQueue(name, self._broker).text

    def _names(self) -> list[str]:
        return sorted({queue.name for queue in self.consumer.queues})

    def _taken_from(self, message: Any) -> str:
        info = message.delivery_info or {}
        if found := info.get(_MARK) or self._by_tag.get(_text(info.get("consumer_tag"))):
            return _text(found)
        route = (_text(info.get("exchange")), _text(info.get("routing_key")))
        return self._routes().get(route) or (self._names() or [route[1]])[0]

    def _routes(self) -> dict[tuple[str, str], str]:
        routes = {("", queue.name): queue.name for queue in self.consumer.queues}
        for queue in self.consumer.queues:
            routes[queue.exchange.name if queue.exchange else "", queue.routing_key] = queue.name
        return routes

    def _consume(self, queue: Any, *args: Any, **kwargs: Any) -> Any:
        tag = self._begin(queue, *args, **kwargs)
        self._note(queue.name, tag)
        return tag

    def _note(self, name: str, tag: Any) -> None:
        if isinstance(tag, str):
            self._by_tag[tag] = name
        _mark_queue(self.consumer, name)


def _text(found: object) -> str:
    """Return a part of a message that should be text."""
    return found if isinstance(found, str) else ""


def _mark_queue(consumer: Any, name: str) -> None:
    callbacks = getattr(getattr(consumer.channel, "connection", None), "_callbacks", None)
    taken = callbacks.get(name) if isinstance(callbacks, dict) else None
    if callbacks is None or taken is None or hasattr(taken, _MARK):
        return

    def take(raw: Any) -> Any:
        info = raw["properties"].setdefault("delivery_info", {})
        if isinstance(info, dict):
            info[_MARK] = name
        return taken(raw)

    setattr(take, _MARK, name)
    callbacks[name] = take
