"""The figures of benchmarks, and their table."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Figure", "percentile", "table"]


@dataclass(frozen=True)
class Figure:
    """One line of the table: a value for each round.

    ``at_least`` or ``at_most`` is the goal; a line without a goal is for comparison. ``why`` is the origin of a goal
    that was itself measured.
    """

    load: str
    name: str
    values: tuple[float, ...]
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    why: str = ""

    @property
    def median(self) -> float:
        """The value that is compared with the goal."""
        return median(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the goal was reached; None without a goal."""
        if self.at_least is not None:
            return self.median >= self.at_least
        if self.at_most is not None:
            return self.median <= self.at_most
        return None

    def row(self) -> tuple[str, str, str, str, str]:
        """Return the cells after the load: name, figure, spread, reach, met."""
        spread = f"{_short(min(self.values))} .. {_short(max(self.values))}"
        figure = f"{_short(self.median)} {self.unit}".strip()
        met = {True: "yes", False: "NO", None: ""}[self.met]
        return self.name, figure, spread, f"{self._goal()} {self.why}".strip(), met

    def as_json(self) -> dict[str, Any]:
        """Return everything, for a file."""
        return {
            "load": self.load,
            "figure": self.name,
            "unit": self.unit,
            "median": self.median,
            "min": min(self.values),
            "max": max(self.values),
            "values": list(self.values),
            "at_least": self.at_least,
            "at_most": self.at_most,
            "met": self.met,
        }

    def _goal(self) -> str:
        if self.at_least is not None:
            return f">= {_short(self.at_least)}"
        if self.at_most is not None:
            return f"<= {_short(self.at_most)}"
        return ""


def percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile of measured values, without inventing values in between."""
    if percent == 50:
        return median(values)
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def table(figures: Sequence[Figure]) -> str:
    """Return the figures as plain text, grouped by load."""
    header = ("figure", "median", "min .. max", "reach", "met")
    rows = [figure.row() for figure in figures]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        return "  " + "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()

    lines = [line(header), line(["-" * width for width in widths])]
    load = ""
    for figure, row in zip(figures, rows, strict=True):
        if figure.load != load:
            load = figure.load
            lines += ["", load]
        lines.append(line(row))
    return "\n".join(lines)


def _short(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.3f}" if abs(value) < 1 else f"{value:.2f}"
