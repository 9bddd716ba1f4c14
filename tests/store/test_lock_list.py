"""All identity locks that are held."""

from __future__ import annotations

from kombu.message import Message
from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.store.identity_locks import LockStatus, read_locks
from celery_throttle.store.parcel import pack
from tests.store.cost import commands
from tests.store.lock_caller import LockCaller, end_lease, plan_of
from tests.store.peek import lapse, peek
from tests.store.steering import Steering

API = Limit("api", 1)
MESSAGE = pack(Message("[[], {}, {}]", headers={"task": "charge"}, properties={}, content_type="application/json"))


def locks(redis: Redis) -> dict[str, LockStatus]:
    """By identity."""
    steering, after, found = Steering(redis), "", []
    while True:
        after, page = read_locks(steering.ask(steering.store.locks(after)))
        found += page
        if not after:
            return {each.identity: each for each in found}


def test_in_each_state(once: LockCaller, redis: Redis) -> None:
    once.claim("t1", plan_of("published"))
    running = once.start("t2", plan_of("running"), API)
    once.put("t3", API, lock=plan_of("parked").spec, message=MESSAGE)
    once.end(once.start("t4", plan_of("done", remember=60)))
    once.end(once.start("t5", plan_of("free")))
    once.start("t6", plan_of("started", lock_until="started"))
    found = locks(redis)
    assert {name: (each.task_id, each.state, each.worker, each.task_name) for name, each in found.items()} == {
        "published": ("t1", "queued", None, None),
        "running": ("t2", "running", "dddddddd", None),
        "parked": ("t3", "queued", None, "charge"),
        "done": ("t4", "done", None, None),
    }
    assert found["running"].fencing_token == running.token
    assert 590 < found["running"].expires_in <= 600
    assert 50 < found["done"].expires_in <= 60


def test_one_that_has_ended_is_left_out_and_nothing_is_written(once: LockCaller, redis: Redis) -> None:
    once.claim("t1", plan_of("lapsed"))
    lapse(redis, "locks:lapsed")
    end_lease(redis, once.start("t2", plan_of("lost")))
    before = peek(redis)
    assert locks(redis) == {}
    after = peek(redis)
    assert (after.hashes, after.sets) == (before.hashes, before.sets)


def test_next_run_is_listed(once: LockCaller, redis: Redis) -> None:
    plan = plan_of(on_conflict="keep_last")
    once.arrive("t1", plan)
    once.arrive("t2", plan)
    (lock,) = locks(redis).values()
    assert (lock.task_id, lock.next_id) == ("t1", "t2")


def test_any_number_a_page_at_a_time(once: LockCaller, redis: Redis) -> None:
    for number in range(1500):
        once.claim(f"t{number}", plan_of(f"i{number}"))
    assert len(locks(redis)) == 1500
    steering = Steering(redis)
    with commands(redis) as calls:
        _, page = read_locks(steering.ask(steering.store.locks("")))
    assert 50 < len(page) < 300
    assert sum(calls.values()) < 1000
