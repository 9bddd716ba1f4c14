"""Jobs of the pool that the gate did not give: their slots are taken, and their tasks cannot be throttled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.journal import Journal
from tests.support.remote import tell
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers
from tests.workers.conftest import use_filesystem_broker
from tests.workers.test_start import refused

STRATEGIES = "tests.support.apps.strategies"
POOLS = [("prefork", "redis"), ("prefork", "filesystem"), ("threads", "redis"), ("gevent", "redis")]


@pytest.mark.parametrize(("pool", "broker"), POOLS)
def test_a_permit_goes_to_no_slot_that_others_have(
    workers: Workers, journal: Journal, state: State, tmp_path: Path, pool: str, broker: str
) -> None:
    if broker == "filesystem":
        use_filesystem_broker(workers, tmp_path)
    busy = workers.start(STRATEGIES, pool=pool, concurrency=1, queues="celery,busy")
    app = workers.app(STRATEGIES)
    idle = workers.start(STRATEGIES, pool=pool, concurrency=1, queues="celery,idle")
    app.batch.apply_async(("batch",), queue="busy")
    journal.wait_running(1, "batch")
    arrived = app.single.apply_async(("arrived",), queue="busy")
    busy.wait_for_log(rf"{arrived.id}\] received")

    # An arrival waits without a permit.
    app.single.apply_async(("first",), queue="idle")
    [first] = journal.wait_running(1, "first")
    assert first.worker.startswith(idle.name)
    # A parked task goes to the other worker.
    state.wait_parked(app.single.apply_async(("second",), queue="idle"))
    journal.let_go("first")
    [second] = journal.wait_running(1, "second")
    assert second.worker.startswith(idle.name)
    journal.let_go("second")
    journal.wait_finished(1, "second")
    assert not journal.runs("arrived")

    journal.let_go("batch", "arrived")
    journal.wait_finished(1, "arrived")
    state.wait_clean()


@pytest.mark.parametrize("options", [{"limit": 1}, {"rate": "2/m"}, {"singleton": True}])
def test_a_throttled_task_that_misses_the_gate_is_refused(workers: Workers, options: dict[str, Any]) -> None:
    [(name, value)] = options.items()
    line = refused(workers, app=STRATEGIES, env={"REFUSED": repr(options)})
    assert line.startswith(f"Error: Task {STRATEGIES}.both: {name}={value!r} cannot hold, because its Strategy")
    assert "leave" in line


def test_a_strategy_of_a_task_without_limits_is_left_alone(workers: Workers, journal: Journal) -> None:
    """Both of a task without the base class, and of one that has it and no option."""
    app = workers.start_app(STRATEGIES, concurrency=1)
    app.batch.delay("batch")
    app.both.delay("both")
    journal.let_all_go()
    journal.wait_finished(2)
    built = [event["task"] for event in journal.events() if event["event"] == "strategy"]
    assert sorted(built) == [app.batch.name, app.both.name]


def test_limits_are_off_so_no_strategy_is_refused(workers: Workers, journal: Journal) -> None:
    conf = {"throttle_enabled": False}
    app = workers.start_app(STRATEGIES, concurrency=1, env={"REFUSED": "{'limit': 1}"}, conf=conf)
    app.both.delay("both")
    journal.let_all_go()
    journal.wait_finished(1)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_task_does_not_wait_for_jobs_that_came_after_it(
    workers: Workers, journal: Journal, state: State, pool: str
) -> None:
    """Others may fill the pool for ever."""
    worker = workers.start(STRATEGIES, pool=pool, concurrency=1)
    app = workers.app(STRATEGIES)
    app.batch.delay("batch 1")
    journal.wait_running(1, "batch 1")
    waits = app.pair.delay("waits")
    worker.wait_for_log(rf"{waits.id}\] received")
    app.batch.delay("batch 2")

    journal.let_go("batch 1")
    journal.wait_running(1, "batch 2")
    until(lambda: state.holders == {waits.id}, describe=state.describe)
    app.batch.delay("batch 3")
    journal.let_go("batch 2")

    journal.wait_running(1, "waits")
    assert not journal.runs("batch 3")
    journal.let_all_go()
    journal.wait_finished(4)
    state.wait_clean()


def test_a_job_of_others_whose_process_is_lost_leaves_its_slot(
    workers: Workers, journal: Journal, state: State
) -> None:
    worker = workers.start(STRATEGIES, concurrency=1)
    app = workers.app(STRATEGIES)
    app.batch.delay("batch")
    journal.wait_running(1, "batch")
    waits = app.single.delay("waits")
    worker.wait_for_log(rf"{waits.id}\] received")
    [about] = tell(app.app, "throttle", worker)
    assert about["slots"] == {"size": 1, "free": 0}

    worker.kill_child()

    journal.wait_running(1, "waits")
    journal.let_go("waits")
    journal.wait_finished(1, "waits")
    state.wait_clean()


@pytest.mark.parametrize(("pool", "broker"), [("prefork", "filesystem"), ("gevent", "redis")])
def test_the_gate_does_not_wait_for_a_full_pool(
    workers: Workers, journal: Journal, tmp_path: Path, pool: str, broker: str
) -> None:
    """These pools have their caller wait for a slot, so a task without limits waits at the gate."""
    if broker == "filesystem":
        use_filesystem_broker(workers, tmp_path)
    worker = workers.start(STRATEGIES, pool=pool, concurrency=1)
    app = workers.app(STRATEGIES)
    app.batch.delay("batch")
    journal.wait_running(1, "batch")
    plain = app.plain.delay("plain")
    worker.wait_for_log(rf"{plain.id}\] received")

    [about] = tell(app.app, "throttle", worker)
    assert about["waiting"]["count"] == 1

    journal.let_all_go()
    journal.wait_finished(2)
