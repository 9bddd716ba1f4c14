"""Workers that hold permits and do not answer, and the runs that they may still have."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

from celery_throttle import Limit, ThrottleControl
from celery_throttle.control.findings import Finding
from celery_throttle.control.reader import Reader
from celery_throttle.worker.reported import notices
from tests.control.conftest import FROZEN
from tests.control.test_looking import API, ONE
from tests.store.lock_caller import PLAN, LockCaller, Started, plan_of
from tests.store.peek import KEY, expire, peek
from tests.store.terms_caller import TermsCaller
from tests.support.incident import incident

pytestmark = pytest.mark.usefixtures("workers_answer")

W1, W2 = "celery@w1/16/aaaaaaaa", FROZEN


def alarms(control: ThrottleControl, *kinds: str) -> list[Finding]:
    return [each for each in control.report().alarms if each.kind in kinds]


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
    control: ThrottleControl, frozen: LockCaller, redis: Redis, left: float, kinds: list[str]
) -> None:
    frozen.take("runs", API)
    let_be_silent(redis, left, "runs")
    assert [each.kind for each in alarms(control, "silent", "lost")] == kinds


def test_silent_worker_is_named_with_its_tasks(
    control: ThrottleControl, frozen: LockCaller, worker: TermsCaller, redis: Redis
) -> None:
    for task in ("one", "two"):
        frozen.take(task, API)
    let_be_silent(redis, 15, "one", "two")
    (found,) = alarms(control, "silent")
    assert found.what == f"Worker {FROZEN} does not answer, and holds permits for 2 tasks: one and two."
    silence = re.match(r"It renews each lease every 20 s, and has not for (\d+) s", found.why)
    assert silence
    assert int(silence[1]) >= 45
    assert found.do == ("celery -A proj inspect ping -d celery@w2",)
    worker.take("three", Limit("other", 1))
    let_be_silent(redis, 15, "three")
    assert len(alarms(control, "silent")) == 2, "each worker is a finding"


@pytest.mark.parametrize("parked", [0, 2100])
def test_duplicate_of_a_silent_worker_is_an_alarm(control: ThrottleControl, redis: Redis, parked: int) -> None:
    """Also behind many tasks, and after the lease, as long as no worker and no beat has reclaimed it."""
    if parked:
        incident(redis, paused_keys=parked, keys=parked)
    frozen = LockCaller(redis, FROZEN, "another queue", lease=60)
    frozen.look(0)  # the first call only reclaims ended leases
    frozen.start("first", PLAN)
    frozen.put_once("duplicate", PLAN)
    assert alarms(control, "duplicate-waits") == []
    let_be_silent(redis, 15, "first")
    (found,) = alarms(control, "duplicate-waits")
    assert found.what == ("1 task waits for the identity lock of task first, whose worker does not answer: duplicate.")
    assert FROZEN in found.why
    expire(redis, "first")
    assert len(alarms(control, "duplicate-waits")) == 1


# -- lost runs of run-once tasks ---------------------------------------------------------------------------------------


@pytest.fixture
def works(redis: Redis) -> LockCaller:
    return LockCaller(redis, W1, "q", lease=60)


@pytest.fixture
def lost_run(works: LockCaller, frozen: LockCaller, redis: Redis) -> Started:
    """A run of the frozen worker whose lease has ended."""
    run = frozen.start("first", PLAN)
    expire(redis, "first")
    works.reap()
    return run


def explained(control: ThrottleControl, task: str) -> tuple[str, str]:
    found = control.explain(task)
    return found.state, " ".join(found.reasons)


def lost(redis: Redis) -> list[str]:
    """The tasks of the lost runs of the frozen worker."""
    entry = peek(redis).meta.get(f"lost:{W2}")
    assert (f"meta:lost:{W2}" in peek(redis).sets["ends"]) == bool(entry)
    return [row["task"] for row in json.loads(entry)["runs"]] if entry else []


def test_lost_run_is_found_beside_the_second(
    control: ThrottleControl, works: LockCaller, frozen: LockCaller, redis: Redis
) -> None:
    frozen.start("first", PLAN)
    assert alarms(control, "runs-twice") == []
    expire(redis, "first")
    assert explained(control, "first")[0] == "held"
    works.reap()
    state, reasons = explained(control, "first")
    assert (state, control.explain("first").worker) == ("lost", W2)
    assert reasons.startswith(f"It ran on worker {W2}, which has not renewed its lease since 19")
    assert reasons.endswith("Its identity lock is free: a second run may have begun, and ended.")
    assert alarms(control, "runs-twice") == []
    second = works.start("first", PLAN)
    (found,) = alarms(control, "runs-twice")
    assert found.what == f"Task first, which runs once, runs on worker {W1}, and may still run on worker {W2}."
    assert found.why.startswith(f"Worker {W2} has not renewed its lease since ")
    assert found.do == ("celery -A proj inspect ping -d celery@w2",)
    state, reasons = explained(control, "first")
    assert state == "held"
    assert f"It may also still run on worker {W2}, which has not renewed its lease since" in reasons
    works.release(second.run)
    assert alarms(control, "runs-twice") == []


@pytest.mark.usefixtures("lost_run")
def test_duplicate_beside_a_lost_run_is_found(control: ThrottleControl, works: LockCaller) -> None:
    works.start("second", PLAN)
    (found,) = alarms(control, "runs-twice")
    assert found.what == (
        f"Task second, which runs once, runs on worker {W1}, and task first with the same identity may still run on "
        f"worker {W2}."
    )
    state, reasons = explained(control, "first")
    assert state == "lost"
    assert "Task second has its identity lock (which runs, since" in reasons


def test_worker_that_answers_again_certainly_runs_it(
    control: ThrottleControl, works: LockCaller, frozen: LockCaller, lost_run: Started
) -> None:
    works.start("first", PLAN)
    frozen.renew(lost_run.held)
    (found,) = alarms(control, "runs-twice")
    assert found.what == f"Task first, which runs once, runs on worker {W1}, and on worker {W2}."
    assert "That worker has called since" in found.why


@pytest.mark.parametrize(
    ("happens", "state"),
    [
        pytest.param(lambda frozen, run: frozen.release(run.run), "unknown", id="it ends"),
        pytest.param(lambda frozen, run: frozen.renew(run.held), "held", id="it gets its lock back"),
        pytest.param(lambda frozen, _: frozen.leave(), "unknown", id="its worker leaves"),
    ],
)
def test_lost_run_is_forgotten_when(
    control: ThrottleControl,
    frozen: LockCaller,
    redis: Redis,
    lost_run: Started,
    happens: Callable[[LockCaller, Started], object],
    state: str,
) -> None:
    assert lost(redis) == ["first"]
    happens(frozen, lost_run)
    assert lost(redis) == []
    assert explained(control, "first")[0] == state


def test_lost_runs_are_the_last_twenty_of_a_worker(works: LockCaller, frozen: LockCaller, redis: Redis) -> None:
    tasks = [f"t{number:02}" for number in range(25)]
    runs = [frozen.start(task, plan_of(task)) for task in tasks]
    expire(redis, *tasks)
    works.reap()
    assert sorted(lost(redis)) == tasks[5:]
    frozen.release(runs[9].run)
    assert sorted(lost(redis)) == [*tasks[5:9], *tasks[10:]]


@pytest.mark.parametrize("why", ["its worker has left", "its lock was free at its start"])
def test_run_is_not_lost_if(works: LockCaller, frozen: LockCaller, redis: Redis, why: str) -> None:
    frozen.start("first", PLAN if why == "its worker has left" else plan_of(lock_until="started"))
    if why == "its worker has left":
        frozen.leave()
    expire(redis, "first")
    works.reap()
    assert lost(redis) == []


@pytest.mark.parametrize("text", ["{", "[]", '{"v":2}', '{"v":2,"runs":[["a",1]]}', '{"v":1,"runs":[]}'])
def test_foreign_entries_are_dropped(
    control: ThrottleControl, works: LockCaller, frozen: LockCaller, redis: Redis, text: str
) -> None:
    redis.hset(KEY["meta"], f"lost:{W2}", text)
    assert explained(control, "first")[0] == "unknown"
    assert alarms(control, "runs-twice") == []
    (wrong,) = control.repair(dry_run=True)
    assert (wrong.key, wrong.field) == ("meta", f"lost:{W2}")
    frozen.start("first", PLAN)
    expire(redis, "first")
    works.reap()
    assert explained(control, "first")[0] == "lost"


# -- log lines about parked tasks --------------------------------------------------------------------------------------


def test_notice_of_a_parked_task_that_has_gone_on(
    app: Any, worker: TermsCaller, caplog: pytest.LogCaptureFixture
) -> None:
    """It has ended, or runs, until the store is asked about it."""
    reader = Reader(app, "")
    link = SimpleNamespace(up=True, send=lambda call, answer: answer(reader.ask(call)))
    calls: Any = SimpleNamespace(link=link, store=reader.store)
    caplog.set_level(logging.INFO, notices.__name__)
    worker.arrive("runs", ONE)
    for task, others in (("ended", 0), ("ended", 3), ("runs", 0)):
        notices._ask_why(SimpleNamespace(name="call", id=task), task, calls, others)
    assert [record.getMessage() for record in caplog.records] == [
        "Task call[ended] parked for a moment; and 3 more in the last second",
        "Task call[runs] parked for a moment",
    ]
