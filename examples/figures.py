"""Figures that several examples compute from the records of their runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["peak"]


def peak(spans: Iterable[tuple[float, float]]) -> int:
    """Return the highest number of overlapping spans; a span that ends as another starts does not overlap it."""
    changes = sorted(change for start, end in spans for change in ((start, 1), (end, -1)))
    highest = now = 0
    for _, change in changes:
        now += change
        highest = max(highest, now)
    return highest
