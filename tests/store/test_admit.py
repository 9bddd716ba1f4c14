"""Asking for a permit."""

from __future__ import annotations

from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import Needs
from celery_throttle.store.exchange_reply import Answer
from tests.store.caller import LEASE, Caller
from tests.store.peek import peek


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
