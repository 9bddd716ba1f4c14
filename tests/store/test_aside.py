"""Unreadable records: what no story of test_mishap_stories.py has, such as locks, lists and times."""

from __future__ import annotations

import json

import pytest
from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange_reply import Answer
from tests.store.caller import Caller, started
from tests.store.lock_caller import plan_of
from tests.store.peek import KEY, expire, lapse, peek
from tests.store.steering import Steering

WHY = {
    b"\x80 not json": "not readable",
    b"": "not readable",
    b"[]": "written by another release",
    b"7": "written by another release",
    b'{"needs":"1:gpu","queue":"q"}': "written by another release",
    b'{"v":3,"needs":"1:gpu"}': "written by another release",
}
each_kind = pytest.mark.parametrize("packed", WHY)


def spoil(redis: Redis, task: str, packed: bytes) -> None:
    redis.hset(KEY["records"], task, packed)


@each_kind
def test_set_aside_record_is_listed(worker: Caller, one: Limit, redis: Redis, packed: bytes) -> None:
    worker.put("t1", one)
    spoil(redis, "t1", packed)
    assert Steering(redis).parked()[0].task_id == "t1"
    worker.look()
    assert not Steering(redis).parked()
    why = Steering(redis).explain("t1")
    assert why.state == "set aside"
    assert WHY[packed] in why.reasons[0]


def spoil_delivery(redis: Redis, task: str) -> None:
    """Spoil the list of held permits; the rest of its record stays readable."""
    record = json.loads(redis.hget(KEY["records"], task) or "{}")
    spoil(redis, task, json.dumps({**record, "needs": 7}).encode())


def test_other_delivery_of_an_unreadable_parked_task_goes_on(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """The first was rejected, to be run again."""
    (first,) = worker.put("t", one, slots=1).grants
    peer.put("t", one, message=b"second")
    worker.release(first, "requeue")
    spoil_delivery(redis, "t")
    (grant,) = peer.look().grants
    assert grant.message == b"second"
    peer.release(grant)
    assert not peek(redis).sets["lines"]


@each_kind
def test_lock_of_an_unreadable_task_ends(worker: Caller, one: Limit, redis: Redis, packed: bytes) -> None:
    redis.hset(KEY["locks"], "same", packed)
    redis.zadd(KEY["ends"], {"locks:same": peek(redis).now + 60_000})
    arrival = worker.arrival("t", one, lock=plan_of(on_conflict="skip").spec)
    assert worker.exchange(asked=[arrival]).asked[0] > max(Answer)


@each_kind
def test_unreadable_lock_goes_when_its_time_is_over(worker: Caller, one: Limit, redis: Redis, packed: bytes) -> None:
    worker.take("t1", one)
    worker.put("t2", one)
    redis.hset(KEY["locks"], "same", packed)
    redis.zadd(KEY["ends"], {"locks:same": 1})
    worker.look()
    assert not peek(redis).hashes["locks"]


def test_all_scripts_of_a_group_go_on(worker: Caller, two: Limit, redis: Redis) -> None:
    """Ten at once, held and parked, in all that there is."""
    for number in range(2):
        worker.take(f"h{number}", two)
    for number in range(8):
        worker.put(f"p{number}", two, wait_ms=600_000)
    for task in peek(redis).records:
        spoil(redis, task, b"{")
    worker.put("good", two)
    expire(redis, "h0", "h1")
    worker.reap()
    assert started(worker.look(9)) == ("good",)
    assert worker.withdraw(*(f"p{number}" for number in range(8))) == ()
    found = Steering(redis).aside()
    assert {each.task_id for each in found} >= {"h0", "h1", "p0"}


def test_set_aside_record_goes_after_a_week(worker: Caller, one: Limit, redis: Redis) -> None:
    worker.put("t1", one)
    spoil(redis, "t1", b"{")
    worker.look()
    store = peek(redis)
    assert store.sets["ends"]["aside:t1"] == pytest.approx(store.now + 7 * 86_400_000, abs=60_000)
    lapse(redis, "aside:t1")
    worker.reap()
    store = peek(redis)
    assert not store.hashes["aside"]
    assert not store.messages
