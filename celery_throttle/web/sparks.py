"""A drawing of the last hour as small as a word: how many started in each minute, and how many of them had waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_throttle.core.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_throttle.store.last_hour import LastHour

__all__ = ["HEIGHT", "Spark", "spark"]

#: Of a drawing, in its own units; a minute is one unit wide.
HEIGHT = 16


@dataclass(frozen=True)
class Spark:
    """What is drawn of a limit.

    Attributes:
        started: how many started, in all.
        waited: how many of them had waited in line.
        most: the greatest number in a minute, in words.
        width: in units.
        all: the outline of how many started, as an SVG's path has it.
        late: that of those who had waited; "" if nobody had.
    """

    started: int
    waited: int
    most: str
    width: int
    all: str
    late: str


def spark(hour: LastHour) -> Spark:
    """Return what there is to draw."""
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
    """Return bars side by side as one outline: a page may have a thousand of them."""
    tops = {value: HEIGHT - max(round(value / most * HEIGHT), 1) if value else HEIGHT for value in {*values}}
    path, level = [f"M0 {HEIGHT}"], HEIGHT
    for x, value in enumerate(values):
        top = tops[value]
        if top != level:
            path.append(f"H{x}V{top}")
            level = top
    return "".join([*path, f"H{len(values)}V{HEIGHT}Z"])
