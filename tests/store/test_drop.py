"""Dropping parked tasks: they do not run, their waiting callers learn it, and no other task is affected."""

from __future__ import annotations

import json
import re

import pytest
from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import Needs
from celery_throttle.store.exchange_reply import Reply
from tests.store.caller import message_of, started
from tests.store.hints import Hints
from tests.store.lock_caller import PLAN, RAISE, LockCaller
from tests.store.peek import KEY, peek
from tests.store.steering import Steering
from tests.store.terms_caller import TermsCaller, terms, used

API, TENANT = Limit("api", 1), Limit("tenant", 1, key="tenant")
ONE = terms(API).same


def of(tenant: str, *more: Limit) -> Needs:
    return terms(TENANT, *more).needs({"keys": {"tenant": tenant}})


def told(reply: Reply) -> list[tuple[str, str]]:
    """Return the tasks that only get an outcome, with that outcome."""
    return [(each.task, each.dropped) for each in reply.grants if each.expired]


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
    assert told(reply) == [(f"t{number}", "dropped by ana: incident 42") for number in (1, 2, 3)]
    assert [each.message for each in reply.grants] == [message_of(f"t{number}") for number in (1, 2, 3)]
    assert used(redis) == {"api": 1}
    for grant in reply.grants:
        assert worker.end(grant, "never", slots=9) == ()
    assert set(peek(redis).records) == {"t0"}
    assert steering.drop(API) == 0


def test_task_with_an_outcome_is_dropped_once(worker: TermsCaller, steering: Steering) -> None:
    worker.arrive("t0", ONE)
    worker.arrive("t1", ONE)
    assert [steering.drop(API, "t1") for _ in range(2)] == [1, 0]
    assert steering.parked_ids(API) == []
    assert [(each.task, each.what) for each in steering.parked_ids()] == [("t1", "told")]
    assert steering.explain("t1").state == "ended without running"
    dropped, takes = steering.explain("t1").reasons
    assert re.fullmatch(r"It was dropped by ana, at [-0-9]{10} [:0-9]{8} UTC: it ends as revoked\.", dropped)
    assert takes == "That takes a worker with a free slot that consumes queue 'q'."
    assert len(steering.audit()) == 1


@pytest.mark.parametrize("how", ["drop", "revoke", "borrow"])
def test_dropped_task_bars_no_other(worker: TermsCaller, steering: Steering, redis: Redis, how: str) -> None:
    """It had gone from one limit to the other so often that nothing newer started on them."""
    both = terms(API, TENANT).needs({"keys": {"tenant": "a"}})
    worker.arrive("t0", ONE)
    worker.arrive("elder", both)
    elder = peek(redis).records["elder"]
    redis.hset(KEY["records"], "elder", json.dumps(elder.raw | {"moves": 8}))
    bar = json.dumps({"bar": [elder.ticket, 9e12, "", "elder", 1]})
    redis.hset(KEY["overrides"], mapping={"api": bar, "tenant\x1fa": bar})
    if how == "drop":
        assert steering.drop(API, "elder") == 1
    elif how == "borrow":
        assert [each.task for each in steering.borrow("elder")[1]] == ["elder"]
    else:
        worker.withdraw("elder")
    assert not peek(redis).hashes["overrides"]
    assert worker.arrive("b0", of("a")), "newer ones start"


# -- affected tasks ----------------------------------------------------------------------------------------------------


def test_a_permit_outside_of_tasks_is_waited_for(worker: TermsCaller, redis: Redis, steering: Steering) -> None:
    outside = TermsCaller(redis, "oooooooo", "~oooooooo")
    held = worker.arrive("t0", ONE)
    assert held
    outside.put("outside:1", ONE, outside=True, wait_ms=60000, message=b"-")
    assert steering.parked_ids(API) == []
    assert steering.drop(API, "outside:1") == 0
    worker.end(held)
    assert started(outside.look()) == ("outside:1",)


# -- identity locks ----------------------------------------------------------------------------------------------------


def test_duplicate_with_an_outcome_is_not_dropped(once: LockCaller, steering: Steering) -> None:
    """Its result names the task that has its lock, even if an operator drops it."""
    once.arrive("t0", PLAN, API)
    once.arrive("t1", RAISE, API)
    assert steering.drop(API, "t1") == 0
    (grant,) = once.look().grants
    assert grant.lock
    assert (grant.lock.verdict, grant.dropped) == ("duplicate", "")


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
