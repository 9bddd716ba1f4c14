"""Limits with permits on each host, worker or tag, on real workers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from celery_throttle import ConfigurationError, ThrottleControl
from celery_throttle.testing import ThrottleTest
from tests.support.apps import sites
from tests.support.apps.sites import BOX, GPU, THUMBS
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Worker, Workers

SITES, APP = "tests.support.apps.sites", sites.app


def on(workers: Workers, host: str) -> Worker:
    """Start a worker of a host, which is not ready yet."""
    tags, conf = {"THROTTLE_TAGS": f"host={host}"}, {"throttle_lease": 3}
    return workers.start(SITES, concurrency=4, env=tags, conf=conf, wait=False)


def fill(task: Any, journal: Journal, state: State, *, running: int, parked: int) -> None:
    """Publish so many tasks as start at once, and some more that are parked."""
    for number in range(running + parked):
        task.delay(f"t{number}")
    journal.wait_running(running)
    state.wait_parked(parked)


def test_hosts_come_and_go_and_one_is_changed(workers: Workers, journal: Journal, state: State) -> None:
    lost, other = on(workers, "a"), on(workers, "b")
    for worker in (lost, other):
        worker.wait_ready()

    def running(worker: Worker) -> int:
        return Counter(run.worker.partition("@")[0] for run in journal.running())[worker.name]

    app = workers.app(SITES)
    host = ThrottleControl(app.app).limit(GPU, key="host=a")
    host.override(1)
    fill(app.train, journal, state, running=3, parked=7)
    assert state.used == {"gpu[host=a]": 1, "gpu[host=b]": 2}
    assert (running(lost), running(other)) == (1, 2)
    host.reset()
    journal.wait_running(4)
    for ended in (1, 2):  # one ends, one starts
        journal.let_go(next(run.label for run in journal.running()))
        journal.wait_finished(ended)
        journal.wait_running(4)
    assert (running(lost), running(other)) == (2, 2)

    lost.kill()
    until(lambda: set(state.used) == {"gpu[host=b]"})
    assert running(other) == 2, "the others go on, and get no permit of the lost host"
    back = on(workers, "a")
    back.wait_ready()
    until(lambda: running(back) == 2)


def test_a_task_waits_for_a_worker_with_the_tag(workers: Workers, journal: Journal, state: State) -> None:
    on(workers, "a").wait_ready()
    app = workers.app(SITES)
    task = app.boxed.delay("t")
    state.wait_parked(1)
    assert any("No live worker has the tag 'gpu_box'" in each for each in state.throttle.explain(task).reasons)
    workers.start(SITES, env={"THROTTLE_TAGS": "gpu_box=b1"})
    journal.wait_running(1, "t")
    assert state.used == {"box[gpu_box=b1]": 1}


def test_a_share_of_each_pool(workers: Workers, journal: Journal, state: State) -> None:
    on(workers, "a").wait_ready()
    app = workers.app(SITES)
    fill(app.thumb, journal, state, running=2, parked=6)
    app.app.control.pool_grow(4)
    journal.wait_running(4)
    state.wait_parked(4)


@pytest.mark.throttle(throttle_tags={"host": "web1"})
def test_a_program_takes_a_permit_of_its_own_host(throttle: ThrottleTest) -> None:
    with GPU.acquire(timeout=5, app=throttle.app):
        assert throttle.control.limit(GPU, key="host=web1").status().held == 1
    for limit, said in ((BOX, "no permits per 'gpu_box': set throttle_tags"), (THUMBS, "take it in a task")):
        with pytest.raises(ConfigurationError, match=said):
            limit.acquire(timeout=5, app=throttle.app)
