"""Permits that passed on within a worker: the order of several rows of one call; the rest are stories."""

from __future__ import annotations

import itertools

from redis import Redis

from celery_throttle.core.facts import Result
from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange import Arrival, DeliveryChange, Exchange
from celery_throttle.store.scripts import execute
from tests.store.caller import Caller, ended, passed, started
from tests.store.peek import peek


def passing(held: Arrival, to: Arrival, result: Result = Result.SUCCESS) -> DeliveryChange:
    return passed(held.task, held.nonce, result, to)


def test_changes_are_carried_out_in_the_order_in_which_they_happened(worker: Caller, two: Limit, redis: Redis) -> None:
    """A run ends, and its retry gets the permit of another run: the other way round the retry would not be held."""
    first, other = worker.take("t", two), worker.take("x", two)
    retry = worker.arrival("t", two, attempt=1)
    rows = Exchange(changed=[ended(first, "retry"), passing(other, retry)])
    execute(redis, worker.store.exchange(worker.name, worker.number + 1, worker.queues, rows))
    store = peek(redis)
    assert {task: record.nonce for task, record in store.records.items()} == {"t": retry.nonce}
    assert store.used == {"gpu2": 1}


def test_a_permit_may_have_passed_several_times(worker: Caller, one: Limit, redis: Redis) -> None:
    """The call reports only the first and the last of them, or all of them, in order."""
    each = [worker.take("t0", one), *(worker.arrival(f"t{number}", one) for number in range(1, 4))]
    worker.exchange(passed=[passing(a, b) for a, b in itertools.pairwise(each)], ended=[ended(each[-1])])
    assert not peek(redis).records
    assert peek(redis).used == {}


def test_permit_passed_before_other_rows_apply(worker: Caller, one: Limit) -> None:
    """The task that got it may have ended by now, and its slot is for the next."""
    held, to = worker.take("t1", one), worker.arrival("t2", one)
    worker.put("t3", one)
    reply = worker.exchange(1, passed=[passing(held, to)], ended=[ended(to)])
    assert started(reply) == ("t3",)
