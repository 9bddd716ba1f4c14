"""The identity lock of a request, from the header that our publisher wrote, or else from the arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_throttle.tasks.publish import HEADER
from celery_throttle.tasks.registry import call_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_throttle.core.dedup import Dedup, LockPlan

__all__ = ["header_of", "headers_of", "plan_of"]

_CANVAS = ("callbacks", "errbacks", "chain", "chord")


def plan_of(request: Any, task: Any, dedup: Dedup) -> LockPlan:
    """Return the lock plan of a request.

    Args:
        request: Celery's request, or the context of one.
        task: the task of the request.
        dedup: the task's options.

    Raises:
        ConfigurationError: the arguments cannot be compared.
    """
    if carried := dedup.carried(header_of(request)):
        return carried
    if dedup.on_conflict == "skip" and _in_canvas(request):
        # If this task were skipped, the rest of its canvas would wait for ever.
        dedup = dedup.for_call(task.name, {"on_conflict": "return_existing"})
    return dedup.plan(call_of(task, request.args, request.kwargs, headers_of(request)))


def header_of(request: Any) -> dict[str, object]:
    """Return the header that our publisher wrote into the message; an empty one for other publishers."""
    found = headers_of(request).get(HEADER)
    return found if isinstance(found, dict) else {}


def headers_of(request: Any) -> Mapping[str, Any]:
    """Return the headers of a message, from Celery's request or the context of one."""
    about = getattr(request, "request_dict", None)
    return vars(request) if about is None else about  # type: ignore[no-any-return]


def _in_canvas(request: Any) -> bool:
    embed = request._payload[2] if hasattr(request, "_payload") else {}  # noqa: SLF001
    return bool(request.group) or any((embed or {}).get(name) for name in _CANVAS)
