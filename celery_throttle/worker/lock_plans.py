"""Read the identity lock of a request from the header that our publisher wrote, or else from the arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_throttle.core.dedup import carried_plan
from celery_throttle.errors import UnusableMessage
from celery_throttle.tasks.publish import HEADER
from celery_throttle.tasks.registry import call_of

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from celery_throttle.core.arguments import TaskCall
    from celery_throttle.core.dedup import Dedup, LockPlan

__all__ = ["call_from", "header_of", "headers_of", "plan_of"]

_CANVAS = ("callbacks", "errbacks", "chain", "chord")


def plan_of(
    request: Any, task: Any, dedup: Dedup | None, groups: Container[str | None] | None = None
) -> LockPlan | None:
    """Return the lock plan of a request, None if it needs no lock.

    Args:
        request: Celery's request, or the context of one.
        task: the task of the request.
        dedup: the task's options; None if it is no singleton here.
        groups: the groups whose locks it can have, with None; None: any. A plan of the message for another one is not
            used.

    Raises:
        ConfigurationError: the arguments cannot be compared.
        UnusableMessage: they are no arguments.
    """
    carried = carried_plan(header_of(request), request.id, dedup)
    if carried is not None and (groups is None or carried.group in groups):
        return carried
    if dedup is None:
        return None
    if dedup.on_conflict == "skip" and _in_canvas(request):
        # If this task were skipped, the rest of its canvas would wait for ever.
        dedup = dedup.for_call(task.name, {"on_conflict": "return_existing"})
    return dedup.plan(call_from(request, task))


def call_from(request: Any, task: Any) -> TaskCall:
    """Return the call of a request, for the options that read its arguments.

    Raises:
        UnusableMessage: the request has no arguments that Python could pass on.
    """
    try:
        return call_of(task, request.args, request.kwargs, headers_of(request))
    except (TypeError, ValueError) as error:
        raise UnusableMessage(
            f"Task {task.name}: args and kwargs of its message are {request.args!r:.200} and {request.kwargs!r:.200}, "
            f"and must be a list and an object: correct its publisher"
        ) from error


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
