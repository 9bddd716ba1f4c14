"""Asking for a permit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import Needs
from celery_throttle.store.exchange_reply import Answer
from tests.store.caller import LEASE
from tests.store.peek import expire, pass_over, peek

if TYPE_CHECKING:
    from redis import Redis

    from tests.store.caller import Caller


def test_as_many_are_granted_as_there_are_permits(worker: Caller, two: Limit, redis: Redis) -> None:
    """Two permits, three askers in one call: the third has to be parked."""
    reply = worker.exchange(asked=[worker.arrival(task, two) for task in ("t1", "t2", "t3")])
    assert reply.asked == (Answer.GRANTED, Answer.GRANTED, Answer.MUST_PARK)
    store = peek(redis)
    assert store.holders("gpu2") == ["t1", "t2"]
    assert store.used == {"gpu2": 2}
    assert "t3" not in store.records


def test_a_permit_is_leased_from_the_time_of_the_store(worker: Caller, one: Limit, redis: Redis) -> None:
    """The deadline is the store's clock plus the lease."""
    before = peek(redis).now
    worker.take("t", one)
    store = peek(redis)
    assert before <= store.leases["t"] - LEASE * 1000 <= store.now


def test_asking_again_is_the_same_permit(worker: Caller, one: Limit, redis: Redis) -> None:
    """A reply was lost: the same delivery asks again and takes nothing more."""
    held = worker.take("t", one)
    assert worker.exchange(asked=[held]).asked == (Answer.GRANTED,)
    assert peek(redis).used == {"gpu": 1}


def test_a_second_delivery_does_not_run_beside_the_first(worker: Caller, peer: Caller, two: Limit) -> None:
    """A permit is free, but this task id holds one already."""
    worker.take("t", two)
    assert peer.ask("t", two)[0] == Answer.MUST_PARK


def test_a_second_delivery_of_a_parked_task_is_parked_already(worker: Caller, peer: Caller, one: Limit) -> None:
    worker.take("t1", one)
    worker.put("t2", one)
    assert peer.ask("t2", one)[0] == Answer.PARKED


def test_a_retry_of_a_parked_task_is_not_parked_already(worker: Caller, peer: Caller, one: Limit) -> None:
    """It carries a newer message, which has to be kept."""
    worker.take("t1", one)
    worker.put("t2", one)
    assert peer.ask("t2", one, attempt=1)[0] == Answer.MUST_PARK


def test_new_task_overtakes_no_parked_one(worker: Caller, peer: Caller, one: Limit) -> None:
    """A permit is free and an older task waits: it starts in the slot of the one that came now."""
    held = worker.take("t1", one)
    peer.put("t2", one)
    worker.release(held)
    reply = worker.exchange(asked=[worker.arrival("t3", one)])
    assert reply.asked == (Answer.MUST_PARK,)
    assert [grant.task for grant in reply.grants] == ["t2"]


def test_a_passed_over_queue_does_not_keep_others_out(
    worker: Caller, stranger: Caller, one: Limit, redis: Redis
) -> None:
    """No worker starts the older task, so the next one in the line goes first, and then a new one."""
    held = worker.take("t1", one)
    stranger.put("t2", one)
    worker.release(held)
    assert worker.ask("t3", one)[0] == Answer.MUST_PARK
    assert worker.put("t3", one, slots=1).grants == ()
    pass_over(redis, "gpu", "q2")
    (grant,) = worker.look().grants
    assert grant.task == "t3"
    worker.release(grant)
    worker.take("t4", one)


def test_limits_with_similar_names_are_different(worker: Caller, one: Limit, two: Limit) -> None:
    """One name begins with the other; the line of one is not the line of the other."""
    held = worker.take("t1", one)
    worker.put("t2", one)
    worker.take("t3", two)
    assert [grant.task for grant in worker.release(held, slots=2).grants] == ["t2"]
    worker.take("t4", two)


def test_undeclared_limit_grants_nothing(worker: Caller, one: Limit) -> None:
    """A worker declares its limits before it asks; a call never declares a number."""
    worker.declare(Limit("other", 1))
    arrival = worker.arrival("t", Needs(("gpu",), "1:gpu"))
    assert worker.exchange(asked=[arrival]).asked == (Answer.MUST_PARK,)
    worker.take("t", one)


def test_a_redelivery_after_the_lease_ended_runs(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """The worker is gone, the broker delivers again: the new holder takes the place of the old one."""
    worker.take("t", one)
    expire(redis, "t")
    held = peer.take("t", one)
    assert peek(redis).records["t"].nonce == held.nonce
    assert peek(redis).used == {"gpu": 1}


def test_many_expired_holders_do_not_hide_a_redelivery(worker: Caller, peer: Caller, redis: Redis) -> None:
    """An exchange clears a few expired holders only; the task it is about is cleared in any case."""
    many = Limit("many", 20)
    tasks = [f"t{number:02d}" for number in range(20)]
    for task in tasks:
        worker.take(task, many)
    expire(redis, *tasks)
    peer.take(tasks[-1], many)
    assert peek(redis).used == {"many": 12}


def test_a_full_limit_does_not_hold_up_another(worker: Caller, one: Limit, two: Limit) -> None:
    worker.take("t1", one)
    worker.put("t2", one)
    assert worker.exchange(asked=[worker.arrival("t3", one), worker.arrival("t4", two)]).asked == (
        Answer.MUST_PARK,
        Answer.GRANTED,
    )
