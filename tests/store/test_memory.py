"""A server that is out of memory and evicts nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from redis import Redis
from redis.exceptions import OutOfMemoryError

from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange_reply import Answer
from tests.store.caller import Caller, ended
from tests.store.peek import expire, pass_over, peek
from tests.store.steering import Steering


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


def test_return_after_a_slow_down_is_refused_as_a_whole(worker: Caller, one: Limit, full: Redis) -> None:
    held = worker.take("t", one)
    fill(full)
    with pytest.raises(OutOfMemoryError):
        worker.send_back(held, 1.0)
    assert peek(full).holders("gpu") == ["t"]


def test_parking_a_parked_task_again_is_refused_too(worker: Caller, one: Limit, full: Redis) -> None:
    """Nothing to store, but still one call, done or not."""
    worker.take("t", one)
    worker.put("t1", one)
    fill(full)
    with pytest.raises(OutOfMemoryError):
        worker.put("t1", one)


def test_permits_go_on_changing_hands(worker: Caller, one: Limit, full: Redis) -> None:
    """Parked tasks still start, and that makes room again."""
    held = worker.take("t1", one)
    worker.put("t2", one)
    fill(full)
    (grant,) = worker.release(held, slots=1).grants
    assert grant.task == "t2"
    assert not worker.release(grant).grants
    assert peek(full).used == {}


def test_a_rejected_task_goes_back_in_line(worker: Caller, one: Limit, full: Redis) -> None:
    """Giving back is never refused, not even where it writes something new."""
    (grant,) = worker.put("t1", one, slots=1).grants
    fill(full)
    worker.release(grant, "requeue")
    assert peek(full).waiting("gpu") == ["t1"]


def test_leases_are_renewed(worker: Caller, one: Limit, full: Redis) -> None:
    """Otherwise a full server would free permits that are in use."""
    held = worker.take("t", one)
    expire(full, "t")
    fill(full)
    assert worker.renew(held) == [1]
    assert peek(full).leases["t"] > peek(full).now


def test_holders_are_put_back(worker: Caller, one: Limit, full: Redis) -> None:
    """A server that lost everything and is full already."""
    held = worker.take("t", one)
    full.flushall()
    worker.declare(one)
    fill(full)
    assert worker.renew(held) == [2]


def test_expired_holders_are_cleared(worker: Caller, two: Limit, full: Redis) -> None:
    """By the beat task and by looking workers."""
    worker.take("t1", two)
    worker.put("t2", two, slots=1)
    expire(full, "t1", "t2")
    fill(full)
    assert worker.reap(1) == [("t1", "1:gpu2")]
    assert [(grant.task, grant.deliveries) for grant in worker.look().grants] == [("t2", 1)]


def test_a_look_can_offer_a_turn(worker: Caller, stranger: Caller, one: Limit, full: Redis) -> None:
    """Otherwise a dead queue at the head would hold up everybody, and nothing would make room."""
    stranger.put("theirs", one)
    worker.put("ours", one)
    fill(full)
    assert worker.look().wait > 0
    full.config_set("maxmemory", 0)
    pass_over(full, "gpu", "q2")
    fill(full)
    assert [grant.task for grant in worker.look().grants] == ["ours"]


def test_new_tasks_still_get_free_permits(worker: Caller, one: Limit, full: Redis) -> None:
    """A holder is small, and soon gone."""
    arrival = worker.arrival("t", one)
    fill(full)
    assert worker.exchange(asked=[arrival]).asked == (Answer.GRANTED,)


def test_revoked_tasks_are_withdrawn(worker: Caller, one: Limit, full: Redis) -> None:
    worker.take("t", one)
    worker.put("t1", one)
    fill(full)
    assert len(worker.withdraw("t1")) == 1


def test_parked_tasks_are_dropped(worker: Caller, one: Limit, full: Redis) -> None:
    """That makes room."""
    worker.take("t", one)
    worker.put("t1", one)
    fill(full)
    assert Steering(full).drop(one) == 1
    assert [grant.task for grant in worker.look().grants] == ["t1"]


def test_worker_signs_off(worker: Caller, one: Limit, full: Redis) -> None:
    worker.put("t1", one)
    fill(full)
    worker.leave()
    assert json.loads(peek(full).hashes["workers"]["aaaaaaaa"]).keys() == {"number", "since"}


def test_a_limit_is_steered(worker: Caller, one: Limit, full: Redis) -> None:
    """An operator can end a pause, and parked tasks start."""
    steering = Steering(full)
    steering.say(one, "pause")
    worker.put("t", one)
    fill(full)
    assert steering.unsay(one, "pause") == 1
    assert steering.say(one, "override", 2) == 1
    assert steering.stands(one).in_force == 2
    assert [each.action for each in steering.audit()] == ["override", "resume", "pause"]
    assert [grant.task for grant in worker.look().grants] == ["t"]
