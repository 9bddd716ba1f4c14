"""Giving a permit back, and the tasks that get it."""

from __future__ import annotations

from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange import Arrival
from celery_throttle.store.exchange_reply import Answer, Grant
from tests.store.caller import Caller, ended
from tests.store.peek import peek


def resumed(worker: Caller, limit: Limit, task: str = "t") -> Grant:
    """A task that was parked and has its permit now."""
    (grant,) = worker.put(task, limit, slots=1).grants
    assert grant.task == task
    return grant


def test_tickets_are_served_in_order_over_all_queues(worker: Caller, redis: Redis, one: Limit) -> None:
    """A bucket has one line for the tasks of all queues."""
    held: Arrival | Grant = worker.take("t0", one)
    order = [f"t{number}" for number in range(1, 12)]
    for number, task in enumerate(order):
        worker.put(task, one, queue=("z", "q", "a")[number % 3])
    everywhere = type(worker)(redis, "dddddddd", "a", "q", "z")
    served = []
    for _ in order:
        (grant,) = everywhere.release(held, slots=1).grants
        served.append(grant.task)
        held = grant
    assert served == order


def test_every_grant_of_a_call_has_a_nonce_of_its_own(worker: Caller, two: Limit) -> None:
    """The nonce identifies the run in its worker."""
    held = [worker.take(task, two) for task in ("t1", "t2")]
    for task in ("t3", "t4"):
        worker.put(task, two)
    grants = worker.exchange(2, ended=[ended(each) for each in held]).grants
    assert len({grant.nonce for grant in grants}) == 2


def test_slot_of_a_refused_task_is_for_the_next_one(worker: Caller, one: Limit) -> None:
    """The task that has to be parked had a slot; it is not left empty."""
    held = worker.take("t1", one)
    worker.put("t2", one)
    reply = worker.exchange(0, ended=[ended(held)], asked=[worker.arrival("t3", one)])
    assert reply.asked == (Answer.MUST_PARK,)
    assert [grant.task for grant in reply.grants] == ["t2"]


def test_only_the_holder_gives_back(worker: Caller, one: Limit, redis: Redis) -> None:
    """Another nonce is another delivery: nothing happens, and no task is started."""
    held = worker.take("t1", one)
    worker.put("t2", one)
    reply = worker.exchange(1, ended=[ended(held._replace(nonce="aaaaaaaa:ff"))])
    assert reply.grants == ()
    assert peek(redis).holders("gpu") == ["t1"]


def test_giving_back_leaves_nothing_behind(worker: Caller, one: Limit, redis: Redis) -> None:
    """Only the limit, the ticket counter and, for an hour, the leaving of the worker stay."""
    worker.release(resumed(worker, one))
    worker.leave()
    store = peek(redis)
    left = {name for name, content in (store.hashes | store.sets).items() if content}
    assert left == {"limits", "meta", "workers", "ends"}
    assert store.meta.keys() == {"birth", "ticket"}
