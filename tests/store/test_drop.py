"""Parked tasks that are dropped, and those that are lent out to be published again: texts, pages and the audit."""

from __future__ import annotations

import pytest
from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import Needs
from tests.store.caller import message_of
from tests.store.hints import Hints
from tests.store.peek import peek
from tests.store.steering import Steering
from tests.store.terms_caller import TermsCaller, terms, used

API, TENANT = Limit("api", 1), Limit("tenant", 1, key="tenant")
ONE = terms(API).same


def of(tenant: str) -> Needs:
    return terms(TENANT).needs({"keys": {"tenant": tenant}})


# -- their ends --------------------------------------------------------------------------------------------------------


def test_dropped_tasks_get_their_outcome_and_do_not_run(
    worker: TermsCaller, steering: Steering, redis: Redis, hints: Hints
) -> None:
    for number in range(4):
        worker.arrive(f"t{number}", ONE)
    hints.take()
    assert steering.drop(API, why="incident 42") == 3
    assert hints.ready() == ["q"]
    stands = steering.stands(API)
    assert (stands.held, stands.parked) == (1, 0), "from now on no task waits for it"
    reply = worker.look(9)
    assert [(each.task, each.message, each.expired, each.dropped) for each in reply.grants] == [
        (f"t{number}", message_of(f"t{number}"), True, "dropped by ana: incident 42") for number in (1, 2, 3)
    ]
    assert used(redis) == {"api": 1}
    for grant in reply.grants:
        assert worker.end(grant, "never", slots=9) == ()
    assert set(peek(redis).records) == {"t0"}
    assert steering.drop(API) == 0


# -- many --------------------------------------------------------------------------------------------------------------


def test_many_are_one_change(worker: TermsCaller, steering: Steering, redis: Redis) -> None:
    worker.arrive("t", ONE)
    for page in range(5):
        worker.exchange(parked=[worker.parcel(f"t{page}-{number}", ONE) for number in range(50)])
    assert steering.drop(API, why="all of them") == 250
    (change,) = steering.audit()
    assert (change.action, change.limit, change.by, change.why) == ("drop", "api", "ana", "all of them")
    assert (change.tasks, change.task_id) == (250, None)
    assert str(change).endswith("ana: drop api, 250 tasks (all of them)")
    steering.say(API, "pause")
    steering.say(API, "override", 2)
    assert [each.tasks for each in steering.audit()] == [0, 0, 250]
    assert len(peek(redis).parked) == 250


def test_one_task_is_named_in_the_audit(worker: TermsCaller, steering: Steering) -> None:
    worker.arrive("t0", ONE)
    worker.arrive("t1", ONE)
    assert steering.drop("", "t1") == 1
    (change,) = steering.audit()
    assert (change.limit, change.task_id, change.tasks) == (None, "t1", 1)


@pytest.mark.parametrize("page", [1, 7, 500])
def test_pages_of_all_waiting_tasks(worker: TermsCaller, steering: Steering, redis: Redis, page: int) -> None:
    """In any number of lines, each task once."""
    other = TermsCaller(redis, "cccccccc", "q2")
    for tenant in range(30):
        for number in range(3):
            (worker, other)[number % 2].arrive(f"{tenant}-{number}", of(str(tenant)))
    for number in range(20):
        worker.arrive(f"t{number}", ONE)
    store = peek(redis)
    rows = steering.parked_ids("tenant", page)
    assert len(rows) == len({each.task for each in rows}) == 60
    assert len(steering.parked_ids("api", page)) == 19
    assert {each.task for each in steering.parked_ids("", page)} == set(store.parked)
    for row in rows:
        assert row.queue.text == store.records[row.task].queue
        assert int(row.ticket) - 10**15 == store.records[row.task].ticket
    assert [each.task for each in steering.parked_ids("tenant\x1f7", page)] == ["7-2", "7-1"]


# -- lent out to be published again ------------------------------------------------------------------------------------


def test_only_as_many_bytes_are_lent_as_are_wanted(worker: TermsCaller, steering: Steering) -> None:
    worker.arrive("t0", ONE)
    for number in range(1, 5):
        worker.put(f"t{number}", ONE, message=b"x" * 100)
    ids = [f"t{number}" for number in range(1, 5)]
    looked_at, lent = steering.borrow(*ids, most_bytes=150)
    assert (looked_at, [each.task for each in lent]) == (2, ["t1", "t2"])
    assert steering.borrow(*ids[2:], most_bytes=1)[0] == 1, "one at least"


def test_a_drain_is_one_change(worker: TermsCaller, steering: Steering) -> None:
    for number in range(4):
        worker.arrive(f"t{number}", ONE)
    change = ""
    for task in ("t1", "t2", "t3"):
        steering.borrow(task)
        change, _ = steering.publish(task, change=change)
    (told,) = steering.audit()
    assert (told.action, told.tasks, told.limit) == ("drain", 3, None)
    assert str(told).endswith(" UTC ana: drain, 3 tasks")
