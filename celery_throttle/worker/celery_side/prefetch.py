"""Raise the prefetch count by the number of messages that are held here, so that the broker delivers others."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from celery.worker import state

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Prefetch"]

#: The largest number that AMQP has room for; kombu makes no limit at all of a larger one.
_MOST = 0xFFFF


class Prefetch:
    """Adds to the number of messages that Celery lets the broker deliver; all on the loop.

    Celery's own number is never changed: Celery bounds that number (`worker_eta_task_limit`), and sets it again while
    tasks of a lost broker connection end. Ours is added only when the number is sent to the broker.
    """

    def __init__(self) -> None:
        self._consumer: Any = None
        self._more = 0

    def begin(self, consumer: Any) -> None:
        """Wrap the consumer's prefetch count: the worker consumes (again), or its queues have changed."""
        self._consumer, qos = consumer, consumer.qos
        if "set" not in vars(qos):
            qos.set = partial(self._set, qos, qos.set)
        if consumer.app.conf.get("worker_disable_prefetch"):  # new in Celery 5.6
            self._count_fewer(getattr(consumer.task_consumer.channel, "qos", None))

    def _count_fewer(self, qos: Any) -> None:
        if qos is not None and "can_consume" in vars(qos):  # set by Celery, because the broker is Redis
            qos.can_consume = lambda: self._can_consume(qos)

    def _set(self, qos: Any, send: Callable[[int], int], value: int) -> int:
        """Send Celery's number to the broker, as kombu does, plus ours; 0 is no limit."""
        more, qos.prev = self._more, None
        send(max(value, min(value + more, _MOST)) if value else 0)
        qos.prev = value
        if self._more != more:  # during the call: a broker may deliver before it answers, or our loop is elsewhere
            qos.prev = None
        return value

    def _can_consume(self, qos: Any) -> bool:
        """Return whether the worker may take one more message: as Celery's step Tasks, but without held requests."""
        consumer = self._consumer
        most = getattr(consumer.controller, "max_concurrency", None) or consumer.pool.num_processes
        return len(state.reserved_requests) - self._more < most and bool(type(qos).can_consume(qos))

    def end(self) -> None:
        """Drop the consumer of a lost broker connection."""
        self._consumer = None

    def let_in(self, more: int) -> None:
        """Let the broker deliver ``more`` messages beyond Celery's number, now or on the next connection."""
        if more == self._more:
            return
        self._more = more
        if self._consumer is not None:
            qos = self._consumer.qos
            qos.prev = None  # so that Celery's loops send the number in their next turn
