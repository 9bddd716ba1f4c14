"""Which identity lock a request needs: from the header its publisher wrote, or from its arguments, whoever sent it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_throttle.tasks.publish import HEADER, plan_for

if TYPE_CHECKING:
    from celery_throttle.core.dedup import Dedup, LockPlan

__all__ = ["header_of", "plan_of"]

_CANVAS = ("callbacks", "errbacks", "chain", "chord")


def plan_of(request: Any, task: Any, dedup: Dedup) -> LockPlan:
    """Return what a request does with its lock.

    Args:
        request: Celery's request, or the context of one.
        task: its task.
        dedup: the task's options.

    Raises:
        ConfigurationError: the arguments cannot be compared.
    """
    if carried := dedup.carried(header_of(request)):
        return carried
    if dedup.on_conflict == "skip" and _in_canvas(request):
        # Skipped, it would leave the rest waiting for ever.
        dedup = dedup.for_call(task.name, {"on_conflict": "return_existing"})
    return plan_for(task, dedup, request.args, request.kwargs)


def header_of(request: Any) -> dict[str, object]:
    """Return what our publisher wrote into the message, nothing if it was not ours."""
    about = getattr(request, "request_dict", None)
    found = about.get(HEADER) if about is not None else getattr(request, HEADER, None)
    return found if isinstance(found, dict) else {}


def _in_canvas(request: Any) -> bool:
    embed = request._payload[2] if hasattr(request, "_payload") else {}  # noqa: SLF001
    return bool(request.group) or any((embed or {}).get(name) for name in _CANVAS)
