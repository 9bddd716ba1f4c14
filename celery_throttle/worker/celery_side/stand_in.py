"""A consumer for strategies whose requests do not start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["StandIn"]


class StandIn:
    """The worker's consumer for one strategy, which gives each request to a function instead of the worker.

    A strategy may call that at once, also for a message with an ETA, or one that is to wait for Celery's rate limit.

    Args:
        consumer: the worker's consumer, which has all other attributes.
        take: takes a request.
    """

    disable_rate_limits = True

    def __init__(self, consumer: Any, take: Callable[[Any], None]) -> None:
        self._consumer, self.on_task_request = consumer, take
        self.qos = SimpleNamespace(increment_eventually=lambda *_: None, decrement_eventually=lambda *_: None)
        self.timer = SimpleNamespace(call_at=lambda eta, function, args, **_: take(args[0]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)
