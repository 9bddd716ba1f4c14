"""Giving a permit back, and the tasks that get it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange_reply import Answer
from tests.store.caller import ended, message_of
from tests.store.peek import expire, peek

if TYPE_CHECKING:
    from redis import Redis

    from celery_throttle.store.exchange import Arrival
    from celery_throttle.store.exchange_reply import Grant
    from tests.store.caller import Caller


def resumed(worker: Caller, limit: Limit, task: str = "t") -> Grant:
    """A task that was parked and has its permit now."""
    (grant,) = worker.put(task, limit, slots=1).grants
    assert grant.task == task
    return grant


def test_the_oldest_takes_the_permit_in_the_same_call(worker: Caller, one: Limit) -> None:
    """First come, first served; the grant brings the message, and a nonce of the worker that released."""
    held = worker.take("t1", one)
    worker.put("t2", one)
    worker.put("t3", one, attempt=1)
    (first,) = worker.release(held, slots=4).grants
    assert (first.task, first.needs, first.queue, first.attempt) == ("t2", "1:gpu", "q", 0)
    assert first.message == message_of("t2")
    assert first.nonce.startswith("aaaaaaaa:")
    (second,) = worker.release(first, slots=4).grants
    assert (second.task, second.attempt, second.message) == ("t3", 1, message_of("t3", 1))


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


def test_no_more_are_granted_than_there_are_slots(worker: Caller, two: Limit) -> None:
    """The reply reports the rest: the caller has to look again when it has slots."""
    held = [worker.take(task, two) for task in ("t1", "t2")]
    for task in ("t3", "t4"):
        worker.put(task, two)
    reply = worker.exchange(1, ended=[ended(each) for each in held])
    assert [grant.task for grant in reply.grants] == ["t3"]
    assert reply.more


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


def test_giving_back_twice_frees_one_permit(worker: Caller, two: Limit, redis: Redis) -> None:
    held = worker.take("t1", two)
    worker.take("t2", two)
    for _ in range(2):
        worker.release(held)
    assert peek(redis).used == {"gpu2": 1}


def test_only_the_holder_gives_back(worker: Caller, one: Limit, redis: Redis) -> None:
    """Another nonce is another delivery: nothing happens, and no task is started."""
    held = worker.take("t1", one)
    worker.put("t2", one)
    reply = worker.exchange(1, ended=[ended(held._replace(nonce="aaaaaaaa:ff"))])
    assert reply.grants == ()
    assert peek(redis).holders("gpu") == ["t1"]


def test_a_late_finish_does_not_free_the_permit_of_the_next_one(worker: Caller, one: Limit, redis: Redis) -> None:
    """The lease ended, another task has the permit; then the first one finishes after all."""
    late = worker.take("t1", one)
    worker.put("t2", one)
    expire(redis, "t1")
    worker.look()
    worker.release(late)
    assert peek(redis).holders("gpu") == ["t2"]


def test_giving_back_leaves_nothing_behind(worker: Caller, one: Limit, redis: Redis) -> None:
    """Only the limit, the ticket counter and, for an hour, the leaving of the worker stay."""
    worker.release(resumed(worker, one))
    worker.leave()
    store = peek(redis)
    left = {name for name, content in (store.hashes | store.sets).items() if content}
    assert left == {"limits", "meta", "workers", "ends"}
    assert store.meta.keys() == {"birth", "ticket"}


def test_emptied_limit_is_reported(worker: Caller, one: Limit) -> None:
    """The line is empty, so the next task of this limit can ask and is not parked at once."""
    held = worker.take("t1", one)
    worker.put("t2", one)
    reply = worker.release(held, slots=1)
    assert (reply.closed, reply.open) == (("gpu",), ())
    reply = worker.release(reply.grants[0], slots=1)
    assert (reply.closed, reply.open) == ((), ("gpu",))


@pytest.mark.parametrize("outcome", ["done", "failed", "retry", "ignored"])
def test_a_task_that_ended_is_forgotten(worker: Caller, one: Limit, redis: Redis, outcome: str) -> None:
    """A retry, for example, comes by the broker."""
    worker.release(resumed(worker, one), outcome)
    assert not peek(redis).records
    assert not peek(redis).messages


def test_a_requeued_task_goes_to_the_end_of_the_line(worker: Caller, one: Limit) -> None:
    """It was rejected: it counts as delivered, and others come first."""
    grant = resumed(worker, one, "t1")
    worker.put("t2", one)
    (second,) = worker.release(grant, "requeue", slots=1).grants
    assert second.task == "t2"
    (again,) = worker.release(second, slots=1).grants
    assert (again.task, again.deliveries, again.message) == ("t1", 1, message_of("t1"))


def test_a_returned_task_keeps_its_place(worker: Caller, one: Limit) -> None:
    """It never started: it is next, and was not delivered."""
    grant = resumed(worker, one, "t1")
    worker.put("t2", one)
    (again,) = worker.release(grant, "return", slots=1).grants
    assert (again.task, again.deliveries) == ("t1", 0)


@pytest.mark.parametrize("outcome", ["requeue", "return"])
def test_a_task_that_the_broker_still_has_is_not_kept(worker: Caller, one: Limit, redis: Redis, outcome: str) -> None:
    """Its message never was in the store: the broker delivers it again."""
    worker.release(worker.take("t", one), outcome)
    assert not peek(redis).records


def test_a_started_early_ack_task_is_not_run_again(worker: Caller, one: Limit, redis: Redis) -> None:
    """From its start on no queue has its message, as with Celery's own early acknowledgement."""
    grant = resumed(worker, one)
    worker.exchange(began=[(grant.task, grant.nonce)])
    assert not peek(redis).messages
    expire(redis, "t")
    worker.look()
    assert not peek(redis).records


def test_a_start_of_another_delivery_does_not_drop_the_message(worker: Caller, one: Limit, redis: Redis) -> None:
    grant = resumed(worker, one)
    worker.exchange(began=[(grant.task, "aaaaaaaa:ff")])
    assert peek(redis).messages == {"t": message_of("t")}


def test_a_late_start_does_not_drop_the_message_of_a_parked_task(worker: Caller, one: Limit, redis: Redis) -> None:
    """The lease ended before the news of the start came: the task is in line again and needs its message."""
    grant = resumed(worker, one)
    expire(redis, "t")
    worker.reap()
    worker.exchange(began=[(grant.task, grant.nonce)])
    assert peek(redis).messages == {"t": message_of("t")}


def test_a_lowered_limit_drains(worker: Caller, two: Limit, redis: Redis) -> None:
    """No holder loses its permit; none is given until enough have come back."""
    held = [worker.take(task, two) for task in ("t1", "t2")]
    worker.put("t3", two)
    worker.declare(Limit("gpu2", 1))
    assert worker.release(held[0], slots=1).grants == ()
    assert peek(redis).holders("gpu2") == ["t2"]
    assert [grant.task for grant in worker.release(held[1], slots=1).grants] == ["t3"]
