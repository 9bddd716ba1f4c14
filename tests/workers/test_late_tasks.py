"""Throttled tasks that a running worker learns of: it throttles them, or fails their messages with the reason."""

from __future__ import annotations

from typing import Any

import pytest
from celery.utils import uuid
from redis import Redis

from celery_throttle import ConfigurationError, ThrottleError
from celery_throttle.embedded import EmbeddedServer
from tests.support.journal import Journal
from tests.support.remote import tell, wait_heard
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Worker, Workers

EARLY, LATE, CONFLICT = (f"tests.support.apps.{name}" for name in ("early", "late", "late_conflict"))
POOLS = ["prefork", "threads"]


def learn(app: Any, worker: Worker, *modules: str) -> Any:
    """Have a worker import modules, and all its children too; return its answer."""
    wait_heard(app.app, worker)
    old = worker.children()
    (answer,) = tell(app.app, "pool_restart", worker, modules=list(modules))
    while "ok" in answer and set(old) & set(worker.children()):  # each takes one more task first
        label = uuid()
        results = [app.plain.delay(label) for _ in old]
        worker.journal.wait_running(len(old), label)
        worker.journal.let_go(label)
        for result in results:
            result.get(timeout=HANGS_AFTER)
    return answer


@pytest.fixture
def journal(journal: Journal) -> Journal:
    """The journal, for plain tasks that end at once."""
    journal.let_go("let go")
    return journal


def send(app: Any, name: str, label: str) -> Any:
    """Publish a task by its name, as another service does, so that only the worker can throttle it."""
    return app.app.send_task(f"{EARLY}.{name}", (label,))


@pytest.mark.parametrize("pool", POOLS)
def test_late_tasks_are_throttled(workers: Workers, journal: Journal, state: State, pool: str) -> None:
    worker = workers.start(EARLY, pool=pool, concurrency=8)
    app = workers.app(EARLY)
    assert "ok" in learn(app, worker, LATE)
    app.early.delay("early")
    journal.wait_running(1, "early")
    names = ("limited", "on_host", "paced", "once")
    first = [send(app, name, f"{name}1") for name in (*names, "late_plain")]
    for result in first:
        journal.wait_begun(result)
    second = [send(app, name, f"{name}2") for name in (*names, "shares")]
    state.wait_parked(*second)
    assert {run.label for run in journal.running()} == {"early", "late_plain1", *(f"{name}1" for name in names)}
    assert state.limit("late").status().permits == 1
    journal.let_all_go()
    limited, on_host, paced, once, shares = second
    assert [each.get(timeout=HANGS_AFTER) for each in (limited, on_host, once, shares)] == [
        "limited2", "on_host2", "once1", "shares2",
    ]  # fmt: skip
    assert state.parked == [paced.id]


def test_tasks_of_a_late_import_are_throttled_after_a_reconnect(
    server: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    """Until then Celery knows no such task."""
    worker = workers.start(EARLY, pool="threads", concurrency=4)
    app = workers.app(EARLY)
    app.imports.delay(LATE).get(timeout=HANGS_AFTER)
    with Redis.from_url(server.url) as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal")
    worker.wait_for_log("Connected to", times=2)
    for name in ("limited", "once"):
        journal.wait_begun(send(app, name, f"{name}1"))
        state.wait_parked(send(app, name, f"{name}2"))
    journal.let_all_go()
    journal.wait_finished(3)
    state.wait_empty()


@pytest.mark.parametrize("pool", POOLS)
def test_late_tasks_that_cannot_be_throttled_fail(workers: Workers, state: State, journal: Journal, pool: str) -> None:
    """Each with its reason, and none of them runs; the others do."""
    worker = workers.start(EARLY, pool=pool)
    app = workers.app(EARLY)
    assert "ok" in learn(app, worker, LATE)
    # The import fails, but leaves the task registered without its limit.
    assert "give both tasks the same Limit" in learn(app, worker, CONFLICT)["error"]
    learn(app, worker)
    for name, why in {
        "far": "no connection for its group of limits, 'far': restart the worker",
        "passes": "does not give its requests to consumer.on_task_request",
        "differs": "limit 'both' is 3 here and 1 in task .*: give both tasks the same Limit",
    }.items():
        with pytest.raises(ConfigurationError, match=why):
            send(app, name, "let go").get(timeout=HANGS_AFTER)
    assert send(app, "limited", "let go").get(timeout=HANGS_AFTER) == "let go"
    assert {run.task.rpartition(".")[2] for run in journal.runs()} <= {"plain", "limited"}
    state.wait_empty()


def test_late_limit_is_declared_as_by_a_new_worker(workers: Workers, state: State) -> None:
    """The newest declaration holds, and the worker logs the one before."""
    older, newer = (workers.start(EARLY, pool="threads", env={"LATE": number}) for number in ("1", "3"))
    app = workers.app(EARLY)
    learn(app, older, LATE)
    until(lambda: state.limit("late").status().permits == 1)
    learn(app, newer, LATE)
    newer.wait_for_log("limit 'late' was declared as 1 and is 3 from now on")
    assert state.limit("late").status().permits == 3


@pytest.mark.parametrize("pool", POOLS)
def test_worker_without_a_gate_fails_late_tasks(workers: Workers, state: State, journal: Journal, pool: str) -> None:
    workers.env["EARLY"] = "plain"
    worker = workers.start(EARLY, pool=pool)
    app = workers.app(EARLY)
    learn(app, worker, LATE)
    late = workers.app(LATE)
    for task in (late.limited, late.once):
        with pytest.raises(ConfigurationError, match=r"had no throttled task at its start .*: restart the worker"):
            task.delay("let go").get(timeout=HANGS_AFTER)
    assert send(app, "late_plain", "let go").get(timeout=HANGS_AFTER) == "let go"
    assert {run.task.rpartition(".")[2] for run in journal.runs()} <= {"plain", "late_plain"}
    until(lambda: late.once.locked_by("let go") is None)
    state.wait_empty()


def test_late_tasks_run_where_throttling_is_off(workers: Workers, journal: Journal) -> None:
    workers.conf["throttle_enabled"] = False
    worker = workers.start(EARLY, pool="threads", env={"EARLY": "plain"})
    app = workers.app(EARLY)
    learn(app, worker, LATE)
    with pytest.raises(ThrottleError, match=r"slows raised RateLimited .* throttle_enabled is False"):
        send(app, "slows", "a").get(timeout=HANGS_AFTER)
    for label in "ab":
        send(app, "limited", label)
    journal.wait_running(2)
