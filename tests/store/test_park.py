"""Setting tasks aside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.store.caller import Parcel, message_of
from tests.store.peek import peek

if TYPE_CHECKING:
    from redis import Redis

    from celery_throttle.core.limits import Limit
    from tests.store.caller import Caller


def test_parked_tasks_wait_in_the_order_given(worker: Caller, one: Limit, redis: Redis) -> None:
    """Many in one call, with ids that sort otherwise."""
    worker.take("t", one)
    tasks = [f"t{number}" for number in range(100, 0, -1)]
    reply = worker.park(*(Parcel(task, one, "q", message_of(task)) for task in tasks))
    assert reply.answers == (1,)
    assert reply.grants == ()
    assert peek(redis).waiting("gpu") == tasks


@pytest.mark.parametrize("message", [b"", b"\x00\xff\r\n" * 100, "é".encode(), b"x" * 1_000_000])
def test_the_message_comes_back_as_it_was(worker: Caller, one: Limit, message: bytes) -> None:
    """The store does not look into it."""
    (grant,) = worker.park(Parcel("t", one, "q", message), slots=1).grants
    assert grant.message == message


@pytest.mark.parametrize("task", ["é", "a b", "*", "{x}", "[1]", "0" * 300])
def test_any_task_id_will_do(worker: Caller, one: Limit, task: str) -> None:
    """Users give their tasks ids of their own."""
    (grant,) = worker.put(task, one, slots=1).grants
    assert grant.task_id == task


def test_a_free_permit_is_taken_in_the_same_call(worker: Caller, two: Limit, redis: Redis) -> None:
    """A permit came back while the task was on its way to be parked: it starts in the slot it had."""
    worker.take("t1", two)
    reply = worker.park(*(Parcel(task, two, "q", b"") for task in ("t2", "t3")), slots=2)
    assert [grant.task_id for grant in reply.grants] == ["t2"]
    assert peek(redis).waiting("gpu2") == ["t3"]


def test_the_oldest_starts_not_the_one_just_parked(worker: Caller, peer: Caller, one: Limit) -> None:
    held = worker.take("t1", one)
    peer.put("t2", one)
    worker.release(held)
    assert [grant.task_id for grant in worker.put("t3", one, slots=1).grants] == ["t2"]


def test_the_same_call_again_does_nothing(worker: Caller, one: Limit, redis: Redis) -> None:
    """Its reply was lost. Meanwhile others may have run what it parked; it must not come back."""
    parcel = Parcel("t", one, "q", b"")
    (grant,) = worker.park(parcel, slots=1, number=7).grants
    again = worker.park(parcel, slots=1, number=7)
    assert again.answers == (0,)
    assert again.grants == ()
    assert not peek(redis).twins
    worker.release(grant)
    assert worker.park(parcel, slots=1, number=7).grants == ()
    assert not peek(redis).records
    assert worker.park(parcel, number=8).answers == (1,)


def test_the_call_numbers_of_two_workers_are_their_own(worker: Caller, peer: Caller, one: Limit) -> None:
    worker.take("t", one)
    assert worker.park(Parcel("t1", one, "q", b""), number=7).answers == (1,)
    assert peer.park(Parcel("t2", one, "q", b""), number=7).answers == (1,)


def test_a_second_delivery_keeps_the_place(worker: Caller, one: Limit, redis: Redis) -> None:
    """The same message twice is one task in line."""
    worker.take("t", one)
    for task in ("t1", "t2", "t1"):
        worker.put(task, one)
    assert peek(redis).waiting("gpu") == ["t1", "t2"]


def test_a_newer_attempt_takes_the_place_of_the_older(worker: Caller, one: Limit, redis: Redis) -> None:
    """A retry while its first attempt waits: the newer message, the older place."""
    worker.take("t", one)
    for task in ("t1", "t2"):
        worker.put(task, one)
    worker.put("t1", one, attempt=1)
    worker.put("t1", one, attempt=0)
    store = peek(redis)
    assert store.waiting("gpu") == ["t1", "t2"]
    assert store.records["t1"].attempt == 1
    assert store.messages["t1"] == message_of("t1", 1)


def test_parking_tells_the_number_of_permits(worker: Caller, one: Limit, redis: Redis) -> None:
    """After a server lost everything, parking may be the first that it hears of a limit."""
    assert worker.put("t", one, slots=1).grants
    assert peek(redis).limits == {"gpu": 1}


def test_a_worker_that_left_is_forgotten(worker: Caller, one: Limit, redis: Redis) -> None:
    worker.put("t", one)
    assert "park:aaaaaaaa" in peek(redis).meta
    worker.leave()
    assert "park:aaaaaaaa" not in peek(redis).meta
