"""Outages of the store: what no story of test_mishap_stories.py has, such as many workers and set times."""

from __future__ import annotations

import pytest
from redis import Redis

from celery_throttle.core.dedup import LockUntil
from celery_throttle.core.limits import Limit
from tests.primitives.faults import StoreClock
from tests.store.caller import Caller
from tests.store.lock_caller import LockCaller, plan_of
from tests.store.peek import KEY, be_away, expire, peek

MOMENT_MS = 4000


def left(client: Redis) -> dict[str, bool]:
    """Whether each lease lasts, and for no longer than a moment."""
    store = peek(client)
    return {task: 0 < till - store.now <= MOMENT_MS for task, till in store.leases.items()}


def test_call_of_one_of_many_workers_proves_a_lost_lease(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """Also one that is not among the first that a script reads."""
    worker.take("t1", one)
    peer.put("t2", one)
    be_away(redis)
    names = [f"old{number}" for number in range(300)]
    redis.hset(KEY["workers"], mapping=dict.fromkeys(names, '{"number":1,"since":1}'))
    redis.zadd(KEY["ends"], {f"workers:{name}": 9e12 for name in names})
    _, first = redis.hscan(KEY["workers"], 0, count=100)
    called = next(name for name in names if name.encode() not in first)
    redis.hset(KEY["workers"], called, f'{{"number":1,"since":{peek(redis).now}}}')
    assert [grant.task for grant in peer.look().grants] == ["t2"]


def test_new_worker_takes_none_for_lost_after_an_outage_as_long_as_a_short_lease(
    redis: Redis, one: Limit, clock: StoreClock
) -> None:
    """The store was away for longer than the lease, and for less than any worker is silent otherwise."""
    worker, new = (Caller(redis, name, "q", lease=3.0) for name in ("aaaaaaaa", "cccccccc"))
    worker.take("t", one)
    clock.move(3_500_000)
    assert new.look().reclaimed == ()
    clock.move((MOMENT_MS + 1) * 1000)
    assert [each.task for each in new.look().reclaimed] == ["t"]


def test_a_call_that_was_long_on_its_way_takes_nothing_for_lost(
    worker: Caller, peer: Caller, two: Limit, redis: Redis
) -> None:
    """The store stood still, so some leases have ended, but not all."""
    for task in ("t1", "t2"):
        worker.take(task, two)
    peer.exchange(clock=1000.0, parked=[peer.parcel("t3", two)])
    expire(redis, "t1")
    assert peer.exchange(1, clock=1000.0 - peer.store.lease / 3).grants == ()
    assert left(redis) == {"t1": True, "t2": False}


def test_return_during_a_moment_gives_no_other(worker: Caller, two: Limit, redis: Redis) -> None:
    for task in ("t1", "t2"):
        worker.take(task, two)
    soon = peek(redis).now + 2000
    redis.hset(KEY["meta"], "moment", f"{soon:.0f}")
    redis.zadd(KEY["leases"], {"t1": soon})
    expire(redis, "t2")
    worker.come_back()
    store = peek(redis)
    assert store.leases == {"t1": soon, "t2": soon}
    assert store.meta["moment"] == f"{soon:.0f}"


# -- identity locks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lock_until", ["finished", "started"])
def test_a_lock_that_ends_soon_outlives_the_moment(once: LockCaller, redis: Redis, lock_until: LockUntil) -> None:
    once.start("first", plan_of(lock_until=lock_until))
    be_away(redis)
    redis.zadd(KEY["ends"], {"locks:same": peek(redis).now + 1000})
    once.come_back()
    store = peek(redis)
    assert store.lock_ends() > store.leases["first"] > store.now
