"""A small drawing of the last hour: starts in each minute, and those of tasks that had waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_throttle.core.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_throttle.store.history import LastHour

__all__ = ["HEIGHT", "Spark", "spark"]

#: The height of a drawing in its own units; a minute is one unit wide.
HEIGHT = 16


@dataclass(frozen=True)
class Spark:
    """The drawing of one limit.

    Attributes:
        started: number of starts.
        waited: number of starts after a wait in line.
        most: the highest number in a minute, in words.
        width: width in units.
        all: the outline of all starts, as an SVG path.
        late: the outline of starts after a wait; "" if there is none.
    """

    started: int
    waited: int
    most: str
    width: int
    all: str
    late: str


def spark(hour: LastHour) -> Spark:
    """Return the drawing of the last hour of a limit."""
    most, waited = max(hour.started), sum(hour.waited)
    return Spark(
        sum(hour.started),
        waited,
        f"{counted(most, 'start')} in the busiest minute",
        len(hour.started),
        _outline(hour.started, most),
        _outline(hour.waited, most) if waited else "",
    )


def _outline(values: Sequence[int], most: int) -> str:
    """Return bars side by side as one outline, because a page may have a thousand drawings."""
    tops = {value: HEIGHT - max(round(value / most * HEIGHT), 1) if value else HEIGHT for value in {*values}}
    path, level = [f"M0 {HEIGHT}"], HEIGHT
    for x, value in enumerate(values):
        top = tops[value]
        if top != level:
            path.append(f"H{x}V{top}")
            level = top
    return "".join([*path, f"H{len(values)}V{HEIGHT}Z"])
