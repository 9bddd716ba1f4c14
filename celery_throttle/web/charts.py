"""Drawings of the history of a limit, as SVG in the page, readable without colours and without the script.

The page of a limit has bar charts, the first page a small drawing of the last hour for each limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from celery_throttle.core.wording import at, one_line, span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from celery_throttle.store.audit import Change
    from celery_throttle.store.history import History, Period

__all__ = ["HEIGHT", "SPARK_HEIGHT", "Chart", "charts", "outline"]

#: The height of a chart in its own units; a bar is one unit wide.
HEIGHT = 40.0
#: The height of a drawing in its own units; a minute is one unit wide.
SPARK_HEIGHT = 16


@dataclass(frozen=True)
class Chart:
    """The values of one number, by period.

    Attributes:
        name: the name of the number.
        summary: the chart in words, for screen readers.
        most: the highest value, in words.
        bars: left end, height (`HEIGHT` at the most) and title of the bar of each period with a value above 0.
        marks: left end and title of each change by a person in this time.
        values: the values of all periods, in words.
        axis: the times at the left end, in the middle and at the right end, in UTC.
    """

    name: str
    summary: str
    most: str
    bars: tuple[tuple[int, float, str], ...]
    marks: tuple[tuple[float, str], ...]
    values: tuple[str, ...]
    axis: tuple[str, str, str]


def charts(history: History, changes: tuple[Change, ...]) -> list[Chart]:
    """Return the charts of a limit for the time of its history; none if nothing was counted."""
    total = history.total
    if not total.started and not total.parked:
        return []
    numbers: dict[str, tuple[Callable[[Period], float | None], Callable[[float], str]]] = {
        "Started": (lambda each: each.started, _count),
        "Wait, 95 % within": (lambda each: each.wait(0.95), span),
        "Held at once": (lambda each: each.held_most, _count),
        "Parked at once": (lambda each: each.parked_most, _count),
        "Failed": (lambda each: each.failed, _count),
    }
    marks = tuple(_marks(history, changes))
    return [_chart(history, name, number, text, marks) for name, (number, text) in numbers.items()]


def _chart(
    history: History,
    name: str,
    number: Callable[[Period], float | None],
    text: Callable[[float], str],
    marks: tuple[tuple[float, str], ...],
) -> Chart:
    values = [number(each) for each in history.periods]
    most = max((each for each in values if each is not None), default=0)
    titles = tuple(
        f"{'none' if value is None else text(value)}, {at(period.since)}"
        for value, period in zip(values, history.periods, strict=True)
    )
    bars = tuple(
        (x, max(value / most * HEIGHT, 1), title)
        for x, (value, title) in enumerate(zip(values, titles, strict=True))
        if value
    )
    summary = f"{name}: {text(most)} in the busiest of {len(values)} periods."
    return Chart(name, summary, text(most), bars, marks, titles, _axis(history))


def _axis(history: History) -> tuple[str, str, str]:
    first, length = history.periods[0], len(history.periods) * history.periods[0].length
    begin, middle, end = ((first.since + timedelta(seconds=length * part)).strftime("%H:%M") for part in (0, 0.5, 1))
    return begin, middle, f"{end} UTC"


def _marks(history: History, changes: tuple[Change, ...]) -> Iterator[tuple[float, str]]:
    first = history.periods[0]
    for each in changes:
        x = (each.at - first.since).total_seconds() / first.length
        if 0 <= x <= len(history.periods):
            yield round(x, 2), one_line(f"{each.what} by {each.by}, {at(each.at)}")


def _count(number: float) -> str:
    return f"{number:.0f}"


def outline(values: Sequence[int], most: int) -> str:
    """Return the starts of each minute as an SVG path: one outline, because a page may have a thousand drawings."""
    tops = {
        value: SPARK_HEIGHT - max(round(value / most * SPARK_HEIGHT), 1) if value else SPARK_HEIGHT
        for value in {*values}
    }
    path, level = [f"M0 {SPARK_HEIGHT}"], SPARK_HEIGHT
    for x, value in enumerate(values):
        top = tops[value]
        if top != level:
            path.append(f"H{x}V{top}")
            level = top
    return "".join([*path, f"H{len(values)}V{SPARK_HEIGHT}Z"])
