"""Clearing holders whose worker is gone."""

from __future__ import annotations

import pytest
from redis import Redis

from celery_throttle.core.limits import Limit
from tests.store.caller import Caller
from tests.store.cost import commands
from tests.store.lock_caller import LockCaller, plan_of
from tests.store.peek import expire, lapse, peek
from tests.support.waiting import until


def test_a_permit_is_free_when_its_lease_is_over(redis: Redis, one: Limit) -> None:
    """In real time, by the clock of the server."""
    worker = Caller(redis, "aaaaaaaa", "q", lease=0.1)
    worker.take("t", one)
    assert until(worker.reap, timeout=5) == [("t", "1:gpu")]
    assert peek(redis).used == {}


@pytest.mark.parametrize("live", [10, 1000])
def test_cost_is_that_of_the_expired_entries(worker: Caller, redis: Redis, live: int) -> None:
    """However many others there are."""
    many = Limit("many", 2000)
    for number in range(live):
        worker.take(f"t{number}", many)
    expire(redis, "t3", "t7")
    with commands(redis) as calls:
        assert len(worker.reap()) == 2
    assert sum(calls.values()) <= 120  # those that read some records, any of them, are among these


def test_killed_workers_go_also_where_no_task_ever_waits(redis: Redis, two: Limit) -> None:
    """There is no beat, so each new worker clears some."""
    for number in range(9):
        caller = Caller(redis, f"{number:08x}", "q")
        caller.release(caller.take("t", two))
        lapse(redis, f"workers:{caller.name}")
    assert peek(redis).hashes["workers"].keys() == {f"{8:08x}"}


def test_locks_that_end_by_themselves_go_also_where_no_task_ever_waits(once: LockCaller, redis: Redis) -> None:
    """There is no beat, so each task that takes such a lock clears some."""
    for number in range(9):
        once.end(once.start(f"t{number}", plan_of(f"order-{number}", lock_until="expires")))
        lapse(redis, f"locks:order-{number}")
    assert peek(redis).locks.keys() == {"order-8"}
