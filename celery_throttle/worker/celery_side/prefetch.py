"""Messages that are held here must not keep the broker from delivering others: it may deliver as many more."""

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
    """How many messages the broker may deliver beyond what Celery lets it; all on the loop.

    That number of Celery's is its own alone: it bounds it (`worker_eta_task_limit`), and sets it anew while tasks of a
    lost broker connection end. It is only on its way to the broker that it becomes more.
    """

    def __init__(self) -> None:
        self._consumer: Any = None
        self._more = 0

    def begin(self, consumer: Any) -> None:
        """The worker consumes (again), or other queues."""
        self._consumer, qos = consumer, consumer.qos
        if "set" not in vars(qos):
            qos.set = partial(self._set, qos, qos.set)
        if consumer.app.conf.get("worker_disable_prefetch"):  # new in Celery 5.6
            self._count_fewer(getattr(consumer.task_consumer.channel, "qos", None))

    def _count_fewer(self, qos: Any) -> None:
        if qos is not None and "can_consume" in vars(qos):  # Celery has put its own there, since the broker is Redis
            qos.can_consume = lambda: self._can_consume(qos)

    def _set(self, qos: Any, tell: Callable[[int], int], value: int) -> int:
        """Tell the broker Celery's number, as kombu does, and more; 0 is no limit."""
        more, qos.prev = self._more, None
        tell(max(value, min(value + more, _MOST)) if value else 0)
        qos.prev = value
        if self._more != more:  # a broker that is told may deliver before it answers, and our loop may be elsewhere
            qos.prev = None
        return value

    def _can_consume(self, qos: Any) -> bool:
        """As Celery's (see its consumer's step Tasks), which counts the requests that are held here, too."""
        consumer = self._consumer
        most = getattr(consumer.controller, "max_concurrency", None) or consumer.pool.num_processes
        return len(state.reserved_requests) - self._more < most and bool(type(qos).can_consume(qos))

    def end(self) -> None:
        """The broker connection is gone."""
        self._consumer = None

    def let_in(self, more: int) -> None:
        """So many messages may be delivered beyond Celery's number, now or on the next connection."""
        if more == self._more:
            return
        self._more = more
        if self._consumer is not None:
            qos = self._consumer.qos
            qos.prev = None  # so Celery's loops have the broker told in their next turn
