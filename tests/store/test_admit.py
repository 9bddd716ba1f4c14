"""Asking for a permit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_throttle.core.limits import Limit
from celery_throttle.store.replies import Answer
from tests.store.caller import LEASE, Held
from tests.store.peek import expire, pass_over, peek

if TYPE_CHECKING:
    from redis import Redis

    from tests.store.caller import Caller


def test_as_many_are_granted_as_there_are_permits(worker: Caller, two: Limit, redis: Redis) -> None:
    """Two permits, three askers in one call: the second hears that it was the last one, the third has to be parked."""
    reply = worker.exchange(asked=[Held(task, worker.nonce(), two) for task in ("t1", "t2", "t3")])
    assert reply.answers == (Answer.GRANTED, Answer.GRANTED_LAST, Answer.MUST_PARK)
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
    assert worker.exchange(asked=[held]).answers == (Answer.GRANTED,)
    assert peek(redis).used == {"gpu": 1}


def test_a_second_delivery_does_not_run_beside_the_first(worker: Caller, peer: Caller, two: Limit) -> None:
    """A permit is free, but this task id holds one already."""
    worker.take("t", two)
    assert peer.ask("t", two)[0] == Answer.MUST_PARK


def test_a_second_delivery_of_a_parked_task_is_parked_already(worker: Caller, peer: Caller, one: Limit) -> None:
    worker.take("t1", one)
    worker.put("t2", one)
    assert peer.ask("t2", one)[0] == Answer.ALREADY_PARKED


def test_a_retry_of_a_parked_task_is_not_parked_already(worker: Caller, peer: Caller, one: Limit) -> None:
    """It carries a newer message, which has to be kept."""
    worker.take("t1", one)
    worker.put("t2", one)
    assert peer.ask("t2", one, attempt=1)[0] == Answer.MUST_PARK


def test_nobody_overtakes_those_who_wait(worker: Caller, peer: Caller, one: Limit) -> None:
    """A permit is free and an older task waits: it starts in the slot of the one that came now."""
    held = worker.take("t1", one)
    peer.put("t2", one)
    worker.release(held)
    reply = worker.exchange(asked=[Held("t3", worker.nonce(), one)])
    assert reply.answers == (Answer.MUST_PARK,)
    assert [grant.task_id for grant in reply.grants] == ["t2"]


def test_a_passed_over_queue_does_not_keep_others_out(
    worker: Caller, stranger: Caller, one: Limit, redis: Redis
) -> None:
    """Nobody starts the older task, so the permit is for whoever comes."""
    held = worker.take("t1", one)
    stranger.put("t2", one)
    worker.release(held)
    assert worker.ask("t3", one)[0] == Answer.MUST_PARK
    pass_over(redis, "gpu", "q2")
    worker.take("t3", one)


def test_limits_with_similar_names_are_different(worker: Caller, one: Limit, two: Limit) -> None:
    """One name begins with the other; the line of one is not the line of the other."""
    held = worker.take("t1", one)
    worker.put("t2", one)
    worker.take("t3", two)
    assert [grant.task_id for grant in worker.release(held, slots=2).grants] == ["t2"]
    worker.take("t4", two)


def test_the_first_number_of_permits_holds_until_declared(worker: Caller, redis: Redis) -> None:
    """A worker that still has the old number in its code does not change it by asking."""
    worker.take("t1", Limit("gpu", 1))
    assert worker.ask("t2", Limit("gpu", 5))[0] == Answer.MUST_PARK
    assert peek(redis).limits == {"gpu": 1}


def test_a_redelivery_after_the_lease_ended_runs(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """The worker is gone, the broker delivers again: the new holder takes the place of the old one."""
    worker.take("t", one)
    expire(redis, "t")
    held = peer.take("t", one)
    assert peek(redis).records["t"].nonce == held.nonce
    assert peek(redis).used == {"gpu": 1}


def test_more_expired_holders_than_one_call_clears_do_not_hide_a_redelivery(
    worker: Caller, peer: Caller, redis: Redis
) -> None:
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
    assert worker.exchange(asked=[Held("t3", worker.nonce(), one), Held("t4", worker.nonce(), two)]).answers == (0, 1)
