"""The starts of the last hour of many limits, in short."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_throttle.core.history import MINUTES, WAITS, Place
from celery_throttle.store.history import numbers_at, slots_of, within

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["LastHour", "last_hours"]

_WAITED = slice(Place.WAITED, Place.WAITED + len(WAITS))


@dataclass(frozen=True)
class LastHour:
    """The starts on a limit (with all its keys) in the last hour, by minute; the last minute has just begun.

    Attributes:
        started: the number of starts in each minute.
        waited: the number of starts after a wait in line, in each minute.
        wait_p95: the wait in seconds within which 95 % of all started, rounded up as in `Period.wait`.
    """

    started: tuple[int, ...]
    waited: tuple[int, ...]
    wait_p95: float


def last_hours(raw: Any, limits: Iterable[str]) -> dict[str, LastHour]:
    """Read the reply of history.lua, for the ring of minutes; limits without a start are left out."""
    now_ms, rings = raw
    minutes = numbers_at(now_ms, MINUTES)
    found = ((limit, _last_hour(packed, minutes)) for limit, packed in zip(limits, rings, strict=True) if packed)
    return {limit: hour for limit, hour in found if hour}


def _last_hour(packed: bytes, minutes: range) -> LastHour | None:
    slots = slots_of(packed, minutes)
    waits = [slot[_WAITED] for slot in slots]
    at_once, waited = [slot[Place.AT_ONCE] for slot in slots], tuple(map(sum, waits))
    p95 = within(0.95, sum(at_once), map(sum, zip(*waits, strict=True)))
    return None if p95 is None else LastHour(tuple(map(sum, zip(at_once, waited, strict=True))), waited, p95)
