"""Asking for a permit."""

from __future__ import annotations

from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import Needs
from celery_throttle.store.exchange_reply import Answer
from tests.store.caller import LEASE, Caller
from tests.store.peek import expire, peek


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


def test_undeclared_limit_grants_nothing(worker: Caller, one: Limit) -> None:
    """A worker declares its limits before it asks; a call never declares a number."""
    worker.declare(Limit("other", 1))
    arrival = worker.arrival("t", Needs(("gpu",), "1:gpu"))
    assert worker.exchange(asked=[arrival]).asked == (Answer.MUST_PARK,)
    worker.take("t", one)


def test_many_expired_holders_do_not_hide_a_redelivery(worker: Caller, peer: Caller, redis: Redis) -> None:
    """An exchange clears a few expired holders only; the task it is about is cleared in any case."""
    many = Limit("many", 20)
    tasks = [f"t{number:02d}" for number in range(20)]
    for task in tasks:
        worker.take(task, many)
    expire(redis, *tasks)
    peer.take(tasks[-1], many)
    assert peek(redis).used == {"many": 12}
