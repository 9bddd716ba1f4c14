"""Pass the seconds that a run waited in line to the process that runs it, in a header of the request.

Only after `show_waits`; otherwise the request of a task that waited has no mark of that.
"""

from __future__ import annotations

from typing import Any

__all__ = ["show_waits", "waited", "with_wait"]

_HEADER = "throttle_waited"
_shown = False


def show_waits() -> None:
    """Pass the waits from now on, in this process, which has to be a worker's main one."""
    global _shown  # noqa: PLW0603 - for the whole process, as Celery's signals are, which use it
    _shown = True


def with_wait(request: Any, seconds: float) -> None:
    """Put the seconds that a request waited into its header; a retry inherits the header of the attempt before."""
    if _shown:
        request.request_dict[_HEADER] = seconds


def waited(context: Any) -> float | None:
    """Return the seconds that the running task has waited in line; None if its header has none."""
    seconds = context.get(_HEADER)
    return float(seconds) if isinstance(seconds, (int, float)) else None
