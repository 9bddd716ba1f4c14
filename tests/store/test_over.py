"""A run succeeds after its lease was lost: no copy of its task starts any more, wherever it is."""

from __future__ import annotations

import pytest
from redis import Redis

from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange_reply import Answer, Grant
from tests.store.caller import Caller, ended, held_by, passed
from tests.store.lock_caller import LockCaller, plan_of
from tests.store.peek import check, expire, peek
from tests.store.steering import Steering

SUCCESS_AT_BROKER = Facts(True, Message.BROKER, Result.SUCCESS)


def lose(redis: Redis, caller: Caller, task: str = "t") -> None:
    """End its lease, and let a call find that."""
    expire(redis, task)
    caller.look(0)


def run_twice(worker: Caller, peer: Caller, redis: Redis, limit: Limit) -> tuple[Grant, Grant]:
    """Return the two runs of a task that was parked, and lost the lease of the first."""
    (first,) = worker.put("t", limit, slots=1).grants
    worker.look(0)
    lose(redis, peer)
    (second,) = peer.look(1).grants
    assert (first.task, second.task) == ("t", "t")
    return first, second


def nothing_is_left(redis: Redis) -> None:
    store = peek(redis)
    check(store)
    assert (store.records, store.seconds, store.messages, store.ran, store.used) == ({}, {}, {}, {}, {})


def test_task_back_in_line_is_dropped(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    (first,) = worker.put("t", one, slots=1).grants
    worker.look(0)
    lose(redis, peer)
    assert peek(redis).parked.keys() == {"t"}
    worker.release(first)
    nothing_is_left(redis)


@pytest.mark.parametrize("how", ["done", "failed", "ignored", "again", "requeue", "retry"])
def test_the_run_beside_it_is_the_last_however_it_ends(
    worker: Caller, peer: Caller, one: Limit, redis: Redis, how: str
) -> None:
    first, second = run_twice(worker, peer, redis, one)
    worker.release(first)
    assert peek(redis).used == {"gpu": 1}  # it still runs
    assert peer.release(second, how, slots=1).grants == ()
    if how == "retry":
        (answer,) = peer.exchange(asked=[peer.arrival("t", one, attempt=1)]).asked
        assert answer == Answer.HAS_RUN
    else:
        nothing_is_left(redis)


def test_run_beside_it_does_not_come_back_after_a_lost_lease(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    first, second = run_twice(worker, peer, redis, one)
    worker.release(first)
    lose(redis, worker)
    assert worker.look(1).grants == ()
    assert not peek(redis).used
    peer.release(second)
    nothing_is_left(redis)


def test_redelivery_after_two_lost_leases_is_dropped(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """Neither run was parked before, so no copy of either was awaited."""
    first = worker.take("t", one)
    lose(redis, peer)
    peer.take("t", one)
    worker.release(first)
    lose(redis, worker)
    assert worker.ask("t", one)[0] == Answer.HAS_RUN


def test_run_beside_it_does_not_go_back_after_a_slow_down(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    first, second = run_twice(worker, peer, redis, one)
    worker.release(first)
    lose(redis, worker)
    peer.send_back(held_by(second), 0.0)
    assert peer.look(1).grants == ()
    assert not peek(redis).records


def test_a_delivery_that_waited_for_it_is_dropped(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    first, second = run_twice(worker, peer, redis, one)
    worker.put("t", one)
    assert peek(redis).seconds.keys() == {"t"}
    worker.release(first)
    assert not peek(redis).seconds
    assert peer.release(second, "ignored", slots=1).grants == ()


def test_redelivered_task_is_dropped(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    held = worker.take("t", one)
    lose(redis, peer)
    assert not peek(redis).records
    worker.release(held, SUCCESS_AT_BROKER)
    (answer,) = peer.exchange(asked=[peer.arrival("t", one)]).asked
    assert answer == Answer.HAS_RUN


def test_a_failure_ends_nothing(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """It may run once more for each lease that is lost."""
    (first,) = worker.put("t", one, slots=1).grants
    worker.look(0)
    lose(redis, peer)
    worker.release(first, "failed")
    assert [each.task for each in peer.look(1).grants] == ["t"]


def test_one_whose_permit_was_passed_on_ends_it_as_well(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    (first,) = worker.put("t", one, slots=1).grants
    worker.look(0)
    lose(redis, peer)
    worker.exchange(passed=[passed("t", first.nonce, Result.SUCCESS, worker.arrival("next", one))])
    nothing_is_left(redis)


def test_a_later_attempt_is_dropped_as_well(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """The run beside it has sent it, and that run is needless."""
    first, second = run_twice(worker, peer, redis, one)
    peer.put("t", one, attempt=1)
    peer.release(second, "retry")
    worker.release(first)
    assert worker.look(1).grants == ()
    assert not peek(redis).records


def test_remembered_success_counts_beside_a_lock_of_another(redis: Redis) -> None:
    worker, peer = LockCaller(redis, "aaaaaaaa", "q"), LockCaller(redis, "bbbbbbbb", "q")
    plan = plan_of(remember=60)
    (first,) = worker.put_once("t", plan, slots=1)
    worker.look(0)
    lose(redis, peer)
    (second,) = peer.look_once(1)
    worker.end(first)
    lose(redis, worker)
    assert worker.look_once(1) == ()
    assert worker.claim("t2", plan)[1] == "t"
    peer.end(second)
    assert worker.claim("t2", plan)[1] == "t"


def test_remembered_success_counts_though_it_went_back_in_line(redis: Redis) -> None:
    worker, peer = LockCaller(redis, "aaaaaaaa", "q"), LockCaller(redis, "bbbbbbbb", "q")
    plan = plan_of(remember=60)
    (first,) = worker.put_once("t", plan, slots=1)
    worker.look(0)
    lose(redis, peer)
    worker.end(first)
    assert worker.claim("t2", plan)[1] == "t"
    assert not peek(redis).records


def test_the_lock_of_a_task_that_is_lent_out_ends_too(redis: Redis, steering: Steering) -> None:
    """The run succeeds while an operator drains its task: the published message will not run."""
    worker, peer = LockCaller(redis, "aaaaaaaa", "q"), LockCaller(redis, "bbbbbbbb", "q")
    (run,) = worker.put_once("t", plan_of(), slots=1)
    worker.look(0)
    lose(redis, peer)
    assert [each.task for each in steering.borrow("t")[1]] == ["t"]
    worker.end(run)
    steering.publish("t")
    assert worker.locked() is None


def test_the_same_row_twice_ends_nothing_else(worker: Caller, one: Limit, redis: Redis) -> None:
    held = worker.take("t1", one)
    worker.put("t2", one)
    for _ in range(2):
        worker.exchange(ended=[ended(held)])
    assert peek(redis).parked.keys() == {"t2"}
