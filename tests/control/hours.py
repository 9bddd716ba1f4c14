"""The counts of workers: those that they send now, and those of an hour."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import pytest
from redis import Redis

from celery_throttle import Limit
from celery_throttle.core.history import MINUTES, SLOT, Place, place_of
from celery_throttle.store import history
from celery_throttle.store.history import by_limit
from celery_throttle.store.scripts import execute
from tests.store.caller import KEYS, needs_of
from tests.store.counts import counts
from tests.store.terms_caller import TermsCaller

__all__ = ["steady", "store_counts", "tell_counts"]


def tell_counts(worker: TermsCaller, *limits: Limit, waited: int = 0, **numbers: float) -> None:
    """Have a worker send its counts of these limits; ``waited``: how many started after a second in line."""
    told = counts(**numbers)
    told[place_of(1.0)] = waited
    worker.declare(*limits)
    for first in range(0, len(limits), 100):
        by_needs = {needs_of(limit).text: told for limit in limits[first : first + 100]}
        execute(worker.client, worker.store.count(by_limit(by_needs)))


@pytest.fixture
def store_counts(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Store the counts of whole minutes, the newest last; from now on no other minute begins."""
    now = int(redis.time()[0]) // MINUTES.seconds
    monkeypatch.setattr(history, "numbers_at", lambda _, ring: range(now - ring.slots + 1, now + 1))

    def store(minutes: Sequence[list[float]], limit: str = "api") -> None:
        for number, minute in enumerate(reversed(minutes), 1):
            slot = struct.pack(f">{SLOT}I", now - number, *map(round, minute[1:]))
            redis.setrange(KEYS.ring(MINUTES.name, limit), (now - number) % MINUTES.slots * len(slot), slot)

    return store


def steady(
    started: int, *, minutes: int = 59, wait: float = 0.0, run_time: float = 1.0, **places: int
) -> list[list[float]]:
    """Return the counts of minutes that are alike; all of their tasks waited as long."""
    alike = counts(ended=started, run_time=started * run_time * 1000, wait_time=started * wait * 1000, **places)
    alike[place_of(wait)] += started
    alike[Place.PARKED] = started if wait else 0
    return [alike] * minutes
