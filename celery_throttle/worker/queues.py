"""Which queue a delivery came from, and which queues this worker consumes."""

from __future__ import annotations

from typing import Any

__all__ = ["QueueMap"]


class QueueMap:
    """The queues of one broker connection.

    A message does not say which queue it was taken from, only how it was routed; where that leaves a doubt, any queue
    of this worker will do, since the task can run here.

    Args:
        consumer: Celery's task consumer, connected.
    """

    def __init__(self, consumer: Any) -> None:
        self._by_tag: dict[str, str] = {}
        self._by_route: dict[tuple[str, str], str] = {}
        names = []
        for queue in consumer.queues:
            names.append(queue.name)
            self._by_route[queue.exchange.name if queue.exchange else "", queue.routing_key] = queue.name
            self._by_route.setdefault(("", queue.name), queue.name)
        for name, tag in getattr(consumer, "_active_tags", {}).items():
            self._by_tag[tag] = name
        self.names: tuple[str, ...] = tuple(sorted(set(names)))

    def queue_of(self, message: Any) -> str:
        """Return the name of the queue that the message came from."""
        info = message.delivery_info or {}
        route = (info.get("exchange") or "", info.get("routing_key") or "")
        return self._by_tag.get(info.get("consumer_tag", "")) or self._by_route.get(route) or self.names[0]
