"""An hour of counts, as workers report them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import pytest
from redis import Redis

from celery_throttle.core.history import MINUTES, SLOT, Place, place_of
from celery_throttle.store import history
from tests.store.caller import KEYS

__all__ = ["steady", "store_counts"]


@pytest.fixture
def store_counts(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Store the counts of whole minutes, the newest last; from now on no other minute begins."""
    now = int(redis.time()[0]) // MINUTES.seconds
    monkeypatch.setattr(history, "numbers_at", lambda _, ring: range(now - ring.slots + 1, now + 1))

    def store(minutes: Sequence[list[float]], limit: str = "api") -> None:
        for number, counts in enumerate(reversed(minutes), 1):
            slot = struct.pack(f">{SLOT}I", now - number, *map(round, counts[1:]))
            redis.setrange(KEYS.ring(MINUTES.name, limit), (now - number) % MINUTES.slots * len(slot), slot)

    return store


def steady(
    started: int, *, minutes: int = 59, wait: float = 0.0, run_time: float = 1.0, **places: int
) -> list[list[float]]:
    """Return the counts of minutes that are alike; all of their tasks waited as long."""
    counts = [0.0] * SLOT
    counts[place_of(wait)] += started
    counts[Place.PARKED] = started if wait else 0
    counts[Place.WAIT_TIME] = started * wait * 1000
    counts[Place.ENDED] = started
    counts[Place.RUN_TIME] = started * run_time * 1000
    for name, number in places.items():
        counts[Place[name.upper()]] = number
    return [counts] * minutes
