"""Lending parked tasks out, so that their messages can be published again."""

from __future__ import annotations

from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.core.queues import BrokerQueue
from celery_throttle.store.draining import Lent
from tests.store.caller import message_of, started
from tests.store.lock_caller import LockCaller, plan_of
from tests.store.peek import expire, peek
from tests.store.steering import Steering
from tests.store.terms_caller import TermsCaller, nothing_left, terms

API = Limit("api", 1)
ONE = terms(API).same


def fill(worker: TermsCaller, count: int) -> object:
    """One runs, the others wait."""
    held = worker.arrive("t0", ONE)
    for number in range(1, count):
        worker.arrive(f"t{number}", ONE)
    return held


def test_published_task_has_left_the_store(worker: TermsCaller, steering: Steering, redis: Redis) -> None:
    held = worker.arrive("t0", ONE)
    assert held
    for task in ("t1", "t2"):
        worker.arrive(task, ONE)
    asked_for, lent = steering.borrow("t1", "t2", "nobody", "t0")
    assert (asked_for, lent) == (4, [Lent(task, BrokerQueue("q"), message_of(task)) for task in ("t1", "t2")])
    stands = steering.stands(API)
    assert (stands.held, stands.parked) == (1, 0)
    assert peek(redis).messages.keys() == {"t1", "t2"}, "until they are reported as published"
    assert started(worker.look(9)) == ()
    assert steering.publish("t1", "t2")[1] == 2
    assert steering.publish("t1", "t2")[1] == 0
    worker.end(held)
    assert nothing_left(redis)


def test_lent_task_is_explained(worker: TermsCaller, steering: Steering) -> None:
    fill(worker, 2)
    steering.borrow("t1")
    (why,) = steering.explain("t1").reasons
    assert why == "The store is being drained: its message is on the way back to its queue."


def test_only_as_many_bytes_as_are_wanted(worker: TermsCaller, steering: Steering) -> None:
    worker.arrive("t0", ONE)
    for number in range(1, 5):
        worker.put(f"t{number}", ONE, message=b"x" * 100)
    ids = [f"t{number}" for number in range(1, 5)]
    looked_at, lent = steering.borrow(*ids, most_bytes=150)
    assert (looked_at, [each.task for each in lent]) == (2, ["t1", "t2"])
    assert steering.borrow(*ids[2:], most_bytes=1)[0] == 1, "one at least"


def test_it_is_one_change(worker: TermsCaller, steering: Steering) -> None:
    fill(worker, 4)
    change = ""
    for task in ("t1", "t2", "t3"):
        steering.borrow(task)
        change, _ = steering.publish(task, change=change)
    (told,) = steering.audit()
    assert (told.action, told.tasks, told.limit) == ("drain", 3, None)
    assert str(told).endswith(" UTC ana: drain, 3 tasks")


def test_the_order_of_all_lines_is_known(worker: TermsCaller, steering: Steering) -> None:
    tenant = Limit("tenant", 1, key="tenant")
    for number in range(12):
        keys = {"keys": {"tenant": str(number % 3)}}
        worker.arrive(f"t{number:02}", terms(tenant).needs(keys))
    held = worker.take("limited", API)
    worker.send_back(held, 60.0)
    assert [each.task for each in sorted(steering.parked_ids())] == ["limited", *(f"t{n:02}" for n in range(3, 12))]


def test_the_lock_of_a_task_that_succeeds_while_it_is_lent_out_ends(redis: Redis, steering: Steering) -> None:
    """Its run had lost the lease, so the task was back in line; the published message will not run."""
    worker, peer = LockCaller(redis, "aaaaaaaa", "q"), LockCaller(redis, "bbbbbbbb", "q")
    (run,) = worker.put_once("t", plan_of(), slots=1)
    worker.look(0)
    expire(redis, "t")
    peer.look(0)
    assert [each.task for each in steering.borrow("t")[1]] == ["t"]
    worker.end(run)
    steering.publish("t")
    assert worker.locked() is None
