"""Workers that hold permits and do not answer, and the tasks that wait for them."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from celery_throttle import ThrottleControl
from celery_throttle.control.findings import Finding
from tests.control.test_looking import API
from tests.store.lock_caller import PLAN, LockCaller
from tests.store.peek import KEY, expire, peek
from tests.store.terms_caller import TermsCaller, terms
from tests.support.incident import incident

pytestmark = pytest.mark.usefixtures("workers_answer")

ONE = terms(API).same


@pytest.fixture
def frozen(redis: Redis) -> LockCaller:
    return LockCaller(redis, "celery@w2/17/bbbbbbbb", "q", lease=60)


def alarms(app: Any, *kinds: str) -> list[Finding]:
    return [each for each in ThrottleControl(app).report().alarms if each.kind in kinds]


def let_be_silent(redis: Redis, left: float, *tasks: str) -> None:
    """Let the leases of these end in so many seconds."""
    end = peek(redis).now + left * 1000
    redis.zadd(KEY["leases"], dict.fromkeys(tasks, end), xx=True)


def test_worker_that_renews_is_no_alarm(app: Any, frozen: LockCaller, redis: Redis) -> None:
    frozen.take("runs", API)
    let_be_silent(redis, 25, "runs")
    assert alarms(app, "silent", "lost") == []


def test_worker_that_misses_renewals_is_an_alarm(app: Any, frozen: LockCaller, redis: Redis) -> None:
    for task in ("one", "two"):
        frozen.take(task, API)
    let_be_silent(redis, 15, "one", "two")
    (found,) = alarms(app, "silent", "lost")
    assert found.kind == "silent"
    assert found.what == "Worker celery@w2/17/bbbbbbbb does not answer, and holds permits for 2 tasks: one and two."
    assert found.why.startswith("It renews each lease every 20 s, and has not for 45 s")
    assert found.do == ("celery -A proj inspect ping -d celery@w2",)


def test_each_silent_worker_is_a_finding(app: Any, frozen: LockCaller, worker: TermsCaller, redis: Redis) -> None:
    frozen.take("one", API)
    worker.take("two", ONE)
    let_be_silent(redis, 15, "one", "two")
    assert len(alarms(app, "silent")) == 2


def test_unreclaimed_lease_is_found_once(app: Any, frozen: LockCaller, redis: Redis) -> None:
    frozen.take("runs", API)
    expire(redis, "runs")
    assert [each.kind for each in alarms(app, "silent", "lost")] == ["lost"]


def test_duplicate_of_a_silent_worker_is_an_alarm(app: Any, frozen: LockCaller, redis: Redis) -> None:
    frozen.start("first", PLAN)
    frozen.put_once("duplicate", PLAN)
    assert alarms(app, "duplicate-waits") == []
    let_be_silent(redis, 15, "first")
    (found,) = alarms(app, "duplicate-waits")
    assert found.what == ("1 task waits for the identity lock of task first, whose worker does not answer: duplicate.")
    assert "celery@w2/17/bbbbbbbb" in found.why


def test_duplicate_after_the_lease_is_an_alarm(app: Any, frozen: LockCaller, redis: Redis) -> None:
    """As long as no worker and no beat has reclaimed it."""
    frozen.start("first", PLAN)
    frozen.put_once("duplicate", PLAN)
    expire(redis, "first")
    assert len(alarms(app, "duplicate-waits")) == 1


def test_duplicate_behind_very_many_parked_tasks_is_an_alarm(app: Any, redis: Redis) -> None:
    incident(redis, paused_keys=2100, keys=2100)
    frozen = LockCaller(redis, "celery@w2/17/bbbbbbbb", "another queue", lease=60)
    frozen.look(0)  # the first call only reclaims ended leases
    frozen.start("first", PLAN)
    frozen.put_once("duplicate", PLAN)
    let_be_silent(redis, 5, "first")
    assert len(alarms(app, "duplicate-waits")) == 1
