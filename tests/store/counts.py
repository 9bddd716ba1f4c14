"""The counts of a worker, in the notation of the tests."""

from __future__ import annotations

from celery_throttle.core.history import SLOT, Place

__all__ = ["counts"]


def counts(**numbers: float) -> list[float]:
    """Return the numbers of a slot, by the names of their places: ``counts(ended=3)``."""
    found = [0.0] * SLOT
    for name, number in numbers.items():
        found[Place[name.upper()]] = number
    return found
