"""Clearing holders whose worker is gone."""

from __future__ import annotations

import pytest
from redis import Redis

from celery_throttle.core.limits import Limit
from tests.store.caller import Caller
from tests.store.cost import commands
from tests.store.peek import KEY, change, expire, lapse, peek
from tests.support.waiting import until

DAY = 86_400_000
HOUR = 3_600_000


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


def test_a_killed_worker_leaves_nothing_for_ever(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """It could not sign off: the entries of a killed worker go after a day."""
    for caller in (worker, peer):
        (grant,) = caller.put("t", one, slots=1).grants
        caller.release(grant)
    store = peek(redis)
    assert store.now + DAY - 60_000 < store.sets["ends"]["workers:aaaaaaaa"] <= store.now + DAY
    lapse(redis, "workers:aaaaaaaa")
    worker.reap()
    assert peek(redis).hashes["workers"].keys() == {"bbbbbbbb"}


def test_killed_workers_go_also_where_no_task_ever_waits(redis: Redis, two: Limit) -> None:
    """There is no beat, so each new worker clears some."""
    for number in range(9):
        caller = Caller(redis, f"{number:08x}", "q")
        caller.release(caller.take("t", two))
        lapse(redis, f"workers:{caller.name}")
    assert peek(redis).hashes["workers"].keys() == {f"{8:08x}"}


def test_entries_of_a_worker_stay_while_it_calls(worker: Caller, redis: Redis) -> None:
    """Also for a week: else a call that is sent again would be carried out again."""
    worker.look()
    redis.zadd(KEY["ends"], {"workers:aaaaaaaa": peek(redis).now + DAY / 3})
    change(redis, "workers", "aaaaaaaa", till=peek(redis).now + DAY / 3)
    worker.look()
    assert peek(redis).sets["ends"]["workers:aaaaaaaa"] > peek(redis).now + DAY / 2


def test_a_worker_that_left_is_forgotten(worker: Caller, peer: Caller, redis: Redis) -> None:
    """In an hour: a copy of one of its calls may come."""
    worker.look()
    worker.leave()
    store = peek(redis)
    assert HOUR - 60_000 < store.sets["ends"]["workers:aaaaaaaa"] - store.now <= HOUR
    lapse(redis, "workers:aaaaaaaa")
    peer.reap()
    assert not peek(redis).hashes["workers"]
    assert not peek(redis).sets["ends"]
