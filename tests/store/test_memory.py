"""A server that is out of memory and evicts nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis
from redis.exceptions import OutOfMemoryError

from celery_throttle.core.limits import Limit
from tests.store.caller import Caller, ended
from tests.store.peek import peek


@pytest.fixture
def full(redis: Redis) -> Iterator[Redis]:
    """The server: `fill` it, it is itself again after the test."""
    policy = str(redis.config_get("maxmemory-policy")["maxmemory-policy"])
    redis.config_set("maxmemory-policy", "noeviction")
    yield redis
    redis.config_set("maxmemory", 0)
    redis.config_set("maxmemory-policy", policy)


def fill(redis: Redis) -> None:
    redis.config_set("maxmemory", 1)
    with pytest.raises(OutOfMemoryError):
        redis.set("more", "x")


def test_parking_is_refused_whole(worker: Caller, one: Limit, full: Redis) -> None:
    """No half of it is there, so the message stays with the broker; the same call goes through later."""
    worker.take("t", one)
    parcels = [worker.parcel(task, one, message=b"x" * 100) for task in ("t1", "t2")]
    before = peek(full)
    fill(full)
    with pytest.raises(OutOfMemoryError):
        worker.exchange(parked=parcels)
    after = peek(full)
    assert (after.hashes, after.sets) == (before.hashes, before.sets)
    full.config_set("maxmemory", 0)
    assert worker.again().parked == (2, 2)


def test_call_that_parks_is_refused_as_a_whole(worker: Caller, two: Limit, full: Redis) -> None:
    """Its worker sends the rest without it."""
    held = [worker.take(task, two) for task in ("t1", "t2")]
    before = peek(full)
    fill(full)
    with pytest.raises(OutOfMemoryError):
        worker.exchange(1, ended=[ended(held[0])], parked=[worker.parcel("t3", two)])
    after = peek(full)
    assert (after.hashes, after.sets) == (before.hashes, before.sets)
    worker.exchange(1, ended=[ended(held[0])])
    assert peek(full).used == {"gpu2": 1}
