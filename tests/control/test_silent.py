"""Workers that hold permits and do not answer, and the tasks that wait for them."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from celery_throttle import Limit, ThrottleControl
from celery_throttle.control.findings import Finding
from tests.control.conftest import FROZEN
from tests.control.test_looking import API
from tests.store.lock_caller import PLAN, LockCaller
from tests.store.peek import KEY, expire, peek
from tests.store.terms_caller import TermsCaller
from tests.support.incident import incident

pytestmark = pytest.mark.usefixtures("workers_answer")


def alarms(app: Any, *kinds: str) -> list[Finding]:
    return [each for each in ThrottleControl(app).report().alarms if each.kind in kinds]


def let_be_silent(redis: Redis, left: float, *tasks: str) -> None:
    """Let the leases of these end in so many seconds."""
    end = peek(redis).now + left * 1000
    redis.zadd(KEY["leases"], dict.fromkeys(tasks, end), xx=True)


@pytest.mark.parametrize(
    ("left", "kinds"),
    [
        pytest.param(25, [], id="it renews"),
        pytest.param(15, ["silent"], id="it has missed a renewal"),
        pytest.param(-60, ["lost"], id="its lease has ended"),
    ],
)
def test_worker_is_an_alarm_once_it_misses_renewals(
    app: Any, frozen: LockCaller, redis: Redis, left: float, kinds: list[str]
) -> None:
    frozen.take("runs", API)
    let_be_silent(redis, left, "runs")
    assert [each.kind for each in alarms(app, "silent", "lost")] == kinds


def test_silent_worker_is_named_with_its_tasks(app: Any, frozen: LockCaller, worker: TermsCaller, redis: Redis) -> None:
    for task in ("one", "two"):
        frozen.take(task, API)
    let_be_silent(redis, 15, "one", "two")
    (found,) = alarms(app, "silent")
    assert found.what == f"Worker {FROZEN} does not answer, and holds permits for 2 tasks: one and two."
    assert found.why.startswith("It renews each lease every 20 s, and has not for 45 s")
    assert found.do == ("celery -A proj inspect ping -d celery@w2",)
    worker.take("three", Limit("other", 1))
    let_be_silent(redis, 15, "three")
    assert len(alarms(app, "silent")) == 2, "each worker is a finding"


def test_duplicate_of_a_silent_worker_is_an_alarm(app: Any, frozen: LockCaller, redis: Redis) -> None:
    """Also after the lease, as long as no worker and no beat has reclaimed it."""
    frozen.start("first", PLAN)
    frozen.put_once("duplicate", PLAN)
    assert alarms(app, "duplicate-waits") == []
    let_be_silent(redis, 15, "first")
    (found,) = alarms(app, "duplicate-waits")
    assert found.what == ("1 task waits for the identity lock of task first, whose worker does not answer: duplicate.")
    assert FROZEN in found.why
    expire(redis, "first")
    assert len(alarms(app, "duplicate-waits")) == 1


def test_duplicate_behind_very_many_parked_tasks_is_an_alarm(app: Any, redis: Redis) -> None:
    incident(redis, paused_keys=2100, keys=2100)
    frozen = LockCaller(redis, FROZEN, "another queue", lease=60)
    frozen.look(0)  # the first call only reclaims ended leases
    frozen.start("first", PLAN)
    frozen.put_once("duplicate", PLAN)
    let_be_silent(redis, 5, "first")
    assert len(alarms(app, "duplicate-waits")) == 1
