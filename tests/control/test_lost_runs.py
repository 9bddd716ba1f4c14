"""Runs of run-once tasks whose leases have ended, which may still go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from celery_throttle import ThrottleControl
from celery_throttle.control.findings import Finding
from tests.control.conftest import FROZEN
from tests.store.lock_caller import PLAN, LockCaller, Started, plan_of
from tests.store.peek import KEY, expire, peek

pytestmark = pytest.mark.usefixtures("workers_answer")

W1, W2 = "celery@w1/16/aaaaaaaa", FROZEN


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


def twice(app: Any) -> list[Finding]:
    return [each for each in ThrottleControl(app).report().alarms if each.kind == "runs-twice"]


def explained(app: Any, task: str) -> tuple[str, str]:
    found = ThrottleControl(app).explain(task)
    return found.state, " ".join(found.reasons)


def lost(redis: Redis) -> dict[str, Any]:
    return {name: json.loads(value) for name, value in peek(redis).meta.items() if name.startswith("lost:")}


@pytest.mark.usefixtures("lost_run")
def test_run_of_a_frozen_worker_is_explained(app: Any) -> None:
    state, reasons = explained(app, "first")
    assert state == "lost"
    assert ThrottleControl(app).explain("first").worker == W2
    assert reasons.startswith(f"It ran on worker {W2}, which has not renewed its lease since 19")
    assert reasons.endswith("Its identity lock is free: a second run may have begun, and ended.")


def test_lost_run_is_found_beside_the_second(app: Any, works: LockCaller, frozen: LockCaller, redis: Redis) -> None:
    frozen.start("first", PLAN)
    assert twice(app) == []
    expire(redis, "first")
    assert explained(app, "first")[0] == "held"
    works.reap()
    assert twice(app) == []
    second = works.start("first", PLAN)
    (found,) = twice(app)
    assert found.what == f"Task first, which runs once, runs on worker {W1}, and may still run on worker {W2}."
    assert found.why.startswith(f"Worker {W2} has not renewed its lease since ")
    assert found.do == ("celery -A proj inspect ping -d celery@w2",)
    state, reasons = explained(app, "first")
    assert state == "held"
    assert f"It may also still run on worker {W2}, which has not renewed its lease since" in reasons
    works.release(second.run)
    assert twice(app) == []


@pytest.mark.usefixtures("lost_run")
def test_duplicate_beside_a_lost_run_is_found(app: Any, works: LockCaller) -> None:
    works.start("second", PLAN)
    (found,) = twice(app)
    assert found.what == (
        f"Task second, which runs once, runs on worker {W1}, and task first with the same identity may still run on "
        f"worker {W2}."
    )
    state, reasons = explained(app, "first")
    assert state == "lost"
    assert "Task second has its identity lock (which runs, since" in reasons


def test_worker_that_answers_again_certainly_runs_it(
    app: Any, works: LockCaller, frozen: LockCaller, lost_run: Started
) -> None:
    works.start("first", PLAN)
    frozen.renew(lost_run.held)
    (found,) = twice(app)
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
    app: Any,
    frozen: LockCaller,
    redis: Redis,
    lost_run: Started,
    happens: Callable[[LockCaller, Started], object],
    state: str,
) -> None:
    assert f"meta:lost:{W2}" in peek(redis).sets["ends"]
    happens(frozen, lost_run)
    assert lost(redis) == {}
    assert f"meta:lost:{W2}" not in peek(redis).sets["ends"]
    assert explained(app, "first")[0] == state


def test_end_of_one_lost_run_leaves_the_others(works: LockCaller, frozen: LockCaller, redis: Redis) -> None:
    run = frozen.start("first", PLAN)
    frozen.start("other", plan_of("other"))
    expire(redis, "first", "other")
    works.reap()
    assert len(lost(redis)[f"lost:{W2}"]["runs"]) == 2
    frozen.release(run.run)
    assert [row["task"] for row in lost(redis)[f"lost:{W2}"]["runs"]] == ["other"]


def test_worker_that_has_left_has_no_lost_run(works: LockCaller, frozen: LockCaller, redis: Redis) -> None:
    frozen.start("first", PLAN)
    frozen.leave()
    expire(redis, "first")
    works.reap()
    assert lost(redis) == {}


def test_task_whose_lock_is_free_at_its_start_may_run_twice(
    works: LockCaller, frozen: LockCaller, redis: Redis
) -> None:
    frozen.start("first", plan_of(lock_until="started"))
    expire(redis, "first")
    works.reap()
    assert lost(redis) == {}


def test_as_many_lost_runs_are_kept_as_twenty(works: LockCaller, frozen: LockCaller, redis: Redis) -> None:
    tasks = [f"t{number:02}" for number in range(25)]
    for task in tasks:
        frozen.start(task, plan_of(task))
    expire(redis, *tasks)
    works.reap()
    (kept,) = lost(redis).values()
    assert sorted(row["task"] for row in kept["runs"]) == tasks[5:]


@pytest.mark.parametrize("text", ["{", "[]", '{"v":2}', '{"v":2,"runs":[["a",1]]}', '{"v":1,"runs":[]}'])
def test_foreign_entries_are_dropped(app: Any, works: LockCaller, frozen: LockCaller, redis: Redis, text: str) -> None:
    redis.hset(KEY["meta"], f"lost:{W2}", text)
    assert explained(app, "first")[0] == "unknown"
    assert twice(app) == []
    (wrong,) = ThrottleControl(app).repair(dry_run=True)
    assert (wrong.key, wrong.field) == ("meta", f"lost:{W2}")
    frozen.start("first", PLAN)
    expire(redis, "first")
    works.reap()
    assert explained(app, "first")[0] == "lost"
