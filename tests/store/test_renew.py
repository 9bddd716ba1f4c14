"""Keeping a permit, and getting it back from a store that lost it."""

from __future__ import annotations

from redis import Redis

from celery_throttle.core.limits import Limit
from tests.store.caller import Caller
from tests.store.peek import let_come_due, peek

LOST, RENEWED, PUT_BACK, LATER = 0, 1, 2, 3


def test_each_gets_its_own_answer(worker: Caller, peer: Caller, two: Limit) -> None:
    """One call renews many; one of them belongs to another worker."""
    ours, theirs = worker.take("t1", two), peer.take("t2", two)
    assert worker.renew(ours, theirs._replace(nonce="aaaaaaaa:ff"), ours) == [RENEWED, LOST, RENEWED]


def test_nothing_held_is_nothing_renewed(worker: Caller) -> None:
    assert worker.renew() == []


def test_waiting_callers_outside_of_tasks_are_kept(worker: Caller, one: Limit, redis: Redis) -> None:
    """A holder outside of tasks whose process is gone leaves the line after a lease."""
    worker.take("t", one)
    worker.put("w1", one, wait_ms=50, outside=True)
    worker.put("w2", one, wait_ms=50, outside=True)
    before = peek(redis).due("task")
    assert worker.renew_all(waiting=["w1", "unknown"])[1] == [1, 0]
    after = peek(redis).due("task")
    assert after["w1"] >= before["w1"] + 100_000
    assert after["w2"] == before["w2"]
    let_come_due(redis, "task", "w2")
    worker.look()
    assert peek(redis).parked.keys() == {"w1"}, "it leaves nothing to report"


def test_renewal_that_an_emptied_store_gets_late_puts_nothing_back(worker: Caller, two: Limit, redis: Redis) -> None:
    """The holder may have ended since, and the store has lost the call that reported that."""
    held = worker.take("t", two)
    birth = worker.declare(two)
    redis.flushall()
    worker.declare(two, known=birth)
    answers, _, since = worker.renew_all(held, birth=birth)
    assert (answers, since == birth.encode()) == ([LATER], False)
    assert peek(redis).used == {}
    answers, *_ = worker.renew_all(held, birth=since.decode())
    assert answers == [PUT_BACK], "listed again for this data"
