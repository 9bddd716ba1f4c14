"""End a request with an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["fail"]


def fail(request: Any, error: Exception) -> None:
    """End a request with an error: result, signal, event and log; acknowledge or reject its message last.

    With ``acks_late`` Celery acknowledges before it stores the result, and the result backend may be away.
    """
    rejected: list[bool] = []
    attributes = vars(request)
    deferred: dict[str, Callable[..., None]] = {
        "acknowledge": lambda: None,
        "reject": lambda requeue=False: rejected.append(requeue),
    }
    before = {name: attributes[name] for name in deferred if name in attributes}
    attributes.update(deferred)
    try:
        raise error
    except type(error):
        request.on_failure(ExceptionInfo())
    finally:
        for name in deferred:
            if attributes.pop(name, None) and name in before:  # else `unwatch` has removed our function
                attributes[name] = before[name]
    if rejected:
        request.reject(requeue=rejected[-1])
    else:
        request.acknowledge()
