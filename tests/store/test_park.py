"""Setting tasks aside."""

from __future__ import annotations

import pytest
from redis import Redis

from celery_throttle.core.limits import Limit
from tests.store.caller import KEYS, Caller, started
from tests.store.peek import peek
from tests.store.steering import Steering


def test_parked_tasks_wait_in_the_order_given(worker: Caller, one: Limit, redis: Redis) -> None:
    """Many in one call, with ids that sort otherwise."""
    worker.take("t", one)
    tasks = [f"t{number}" for number in range(50, 0, -1)]
    reply = worker.exchange(parked=[worker.parcel(task, one) for task in tasks])
    assert reply.parked == (2,) * 50
    assert reply.grants == ()
    assert peek(redis).waiting("gpu") == tasks


@pytest.mark.parametrize(
    ("task", "message"),
    [
        *(("t", message) for message in (b"\0", b"\x00\xff\r\n" * 100, "é".encode(), b"x" * 1_000_000)),
        *((task, b"any") for task in ("é", "a b", "*", "{x}", "[1]", "0" * 300)),
        # The last character of each length and range in UTF-8.
        *((chr(end), b"any") for end in (0x7F, 0x7FF, 0xFFF, 0xD7FF, 0xFFFF, 0x3FFFF, 0xFFFFF, 0x10FFFF)),
    ],
    ids=lambda each: ascii(each)[:20],
)
def test_any_task_id_will_do_and_any_message_comes_back(
    worker: Caller, one: Limit, redis: Redis, task: str, message: bytes
) -> None:
    held = worker.take("held", one)
    worker.put(task, one, message=message)
    (grant,) = worker.release(held, slots=1).grants
    assert (grant.task, grant.message) == (task, message)
    assert not Steering(redis).aside()


def test_first_task_is_first_though_its_call_came_later(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """A worker that has to ask, or stands still for a while, reports how long ago each of its tasks came."""
    worker.take("t", one)
    peer.put("t2", one)
    peer.put("t4", one)
    late = [worker.parcel("t1", one, age=60.0), worker.parcel("t3", one), worker.parcel("t0", one, age=61.0)]
    worker.exchange(parked=late)
    assert peek(redis).waiting("gpu") == ["t0", "t1", "t2", "t4", "t3"]


def test_first_task_is_first_though_its_call_took_longer(worker: Caller, one: Limit) -> None:
    """The machine was busy between the moment when the call was put together and the store's turn."""
    held = worker.take("held", one)
    worker.exchange(clock=100.0)
    worker.exchange(clock=99.95, parked=[worker.parcel("t1", one, age=0.002)])  # 50 ms on its way
    worker.exchange(clock=100.0, parked=[worker.parcel("t2", one, age=0.03)])
    assert started(worker.release(held, slots=1)) == ("t1",)


def test_later_task_of_one_worker_stands_later(worker: Caller, one: Limit, redis: Redis) -> None:
    """Its first calls are late, which shows when one is not: that one has the tasks that came in between."""
    worker.take("held", one)
    worker.exchange(clock=100.0)  # 50 ms on its way, as the next one
    worker.exchange(clock=100.001, parked=[worker.parcel("t1", one), worker.parcel("t2", one)])
    worker.exchange(clock=100.052, parked=[worker.parcel("t0", one, age=0.1), worker.parcel("t3", one, age=0.04)])
    worker.exchange(clock=100.053, parked=[worker.parcel("t4", one, age=0.03)])
    assert peek(redis).waiting("gpu") == ["t0", "t1", "t2", "t3", "t4"]


def test_a_clock_that_was_set_is_believed(worker: Caller, peer: Caller, one: Limit) -> None:
    """It may be the clock of the store or of the worker; the usual delay from before does not apply then."""
    held = worker.take("held", one)
    worker.exchange(clock=5000.0)
    peer.exchange(clock=100.0, parked=[peer.parcel("t1", one)])
    worker.exchange(clock=1000.0, parked=[worker.parcel("t2", one)])
    assert started(worker.release(held, slots=1)) == ("t1",)


def test_a_clock_that_is_set_back_changes_no_order(worker: Caller, one: Limit, redis: Redis) -> None:
    worker.take("t", one)
    worker.put("t1", one)
    redis.hset(KEYS.key("meta"), "ticket", 50_000_000_000_000)
    tasks = ["t2", "t5", "t4", "t3"]
    for task in tasks:
        worker.put(task, one)
    assert peek(redis).waiting("gpu") == ["t1", *tasks]
