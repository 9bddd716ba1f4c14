"""The worker's connection to its broker: each loss of it begins another epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_throttle.worker.celery_side.prefetch import Prefetch
from celery_throttle.worker.celery_side.queues import Queues
from celery_throttle.worker.celery_side.requests import RequestFactory

if TYPE_CHECKING:
    from celery_throttle.worker.runs import Run

__all__ = ["Broker"]


class Broker:
    """Which connection there is, and what is consumed on it; all on the loop.

    Args:
        code: of the broker, as in the names of its queues.

    Attributes:
        epoch: counts the connections.
        prefetch: how many messages may be delivered.
        queues: those that the worker consumes; None while there is no connection.
        requests: makes requests of parked messages, as the consumer does; None before the first connection.
    """

    def __init__(self, code: str) -> None:
        self._code = code
        self.epoch = 0
        self.prefetch = Prefetch()
        self.queues: Queues | None = None
        self.requests: RequestFactory | None = None

    def connected(self, consumer: Any) -> None:
        """The worker consumes (again), or other queues."""
        if self.queues is None or self.queues.consumer is not consumer.task_consumer:
            self.queues = Queues(consumer.task_consumer, self._code)
        if self.requests is None or self.requests.consumer is not consumer:
            self.requests = RequestFactory(consumer)
        self.requests.follow()
        self.prefetch.begin(consumer)

    def disconnected(self) -> None:
        """The connection is gone: the broker will deliver again what was not acknowledged."""
        self.epoch += 1
        self.queues = None
        self.prefetch.end()

    def delivers_again(self, run: Run) -> bool:
        """Return whether the run came with a connection that is gone."""
        return run.epoch != self.epoch
