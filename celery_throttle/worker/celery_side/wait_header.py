"""How long a run waited in line, for the process that runs it: a header of its own, only where somebody asked for it.

Without that a task that waited is the same request as one that did not.
"""

from __future__ import annotations

from typing import Any

__all__ = ["show_waits", "waited", "with_wait"]

_HEADER = "throttle_waited"
_shown = False


def show_waits() -> None:
    """From now on, in this process: it has to be a worker's main one."""
    global _shown  # noqa: PLW0603 - as the signals of Celery, which use it, it is of the whole process
    _shown = True


def with_wait(request: Any, seconds: float) -> None:
    """Let the process that runs a request see how long it waited; a retry has what the attempt before was told."""
    if _shown:
        request.request_dict[_HEADER] = seconds


def waited(context: Any) -> float | None:
    """Return for how many seconds the task that runs has waited in line; None if it was not told."""
    seconds = context.get(_HEADER)
    return float(seconds) if isinstance(seconds, (int, float)) else None
