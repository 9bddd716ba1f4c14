"""Where Celery's own tools find a parked task, and where not: the table in docs/howto/operate.md, row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from celery import states
from redis import Redis

from celery_throttle import ThrottleControl
from tests.support.journal import Journal
from tests.support.monitor import Monitor
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers
from tests.workers.conftest import FEATURES


class Scene:
    """A task runs on the first worker, another one is parked by it; the second worker has nothing yet."""

    def __init__(self, workers: Workers, journal: Journal, state: State, monitor: Monitor) -> None:
        self.app = workers.app(FEATURES)
        self.control, self.monitor = self.app.app.control, monitor
        self.first, self.second = workers.started[0], workers.started[1]
        self.on_first, self.on_second = sorted(name for each in self.control.ping(timeout=5, limit=2) for name in each)
        (told,) = self.control.cancel_consumer("celery", destination=[self.on_second], reply=True, timeout=5, limit=1)
        assert "ok" in told[self.on_second]
        self.running = self.app.one_hold.delay("runs")
        journal.wait_running(1)
        self.parked = self.app.one_hold.delay("waits")
        state.wait_parked(1)
        monitor.wait_for(self.parked.id, "throttle-parked")

    def seen_by(self, command: str, *args: object) -> bool:
        """Whether any worker has the parked task in its answer to ``celery inspect COMMAND``."""
        answers: Any = getattr(self.control.inspect(timeout=5), command)(*args)
        assert set(answers) == {self.on_first, self.on_second}
        return self.parked.id in str(answers)


@pytest.fixture
def scene(workers: Workers, journal: Journal, state: State) -> Iterator[Scene]:
    workers.conf |= {"worker_send_task_events": True}
    workers.start_many(2, FEATURES, concurrency=2)
    with Monitor(workers.app(FEATURES).app) as monitor:
        yield Scene(workers, journal, state, monitor)


def test_parked_task_is_in_no_answer_of_inspect(scene: Scene) -> None:
    for command in ("reserved", "active", "scheduled"):
        assert not scene.seen_by(command), command
    assert not scene.seen_by("query_task", scene.parked.id)
    assert scene.running.id in str(scene.control.inspect(timeout=5).active())


@pytest.mark.usefixtures("scene")
def test_parked_task_is_in_no_queue_and_not_unacknowledged(redis: Redis) -> None:
    assert redis.llen("celery") == 0
    # Early acknowledgement: the one that runs has been acknowledged, too.
    until(lambda: redis.hlen("unacked") == 0, describe=lambda: str(redis.hgetall("unacked")))


def test_parked_task_stays_through_purge(scene: Scene, state: State) -> None:
    assert scene.control.purge() == 0
    assert state.count == 1


def test_parked_task_is_pending_in_the_result_backend(scene: Scene) -> None:
    assert (scene.parked.state, scene.parked.ready()) == (states.PENDING, False)


def test_parked_task_is_received_for_flower(scene: Scene) -> None:
    """``celery events`` and Flower show the content of this state."""
    shown = scene.monitor.state.tasks[scene.parked.id]
    assert (shown.state, shown.worker.hostname) == (states.RECEIVED, scene.on_first)
    assert scene.monitor.types(scene.parked.id) == ["task-received", "throttle-parked"]


def test_parked_task_is_found_by_the_throttle(scene: Scene) -> None:
    throttle = ThrottleControl(scene.app.app)
    assert [each.task_id for each in throttle.parked("single")] == [scene.parked.id]
    parked, running = throttle.explain(scene.parked.id), throttle.explain(scene.running.id)
    assert (parked.state, parked.args, parked.kwargs, parked.worker) == ("parked", "('waits',)", "{}", None)
    (holder,) = throttle.holders()
    # Its message is acknowledged, and was never in the store.
    assert (running.state, running.args, running.worker) == ("held", None, holder.worker)


def test_parked_task_that_is_revoked_ends_at_once(scene: Scene, state: State) -> None:
    scene.parked.revoke()
    until(lambda: scene.parked.state == states.REVOKED)
    scene.monitor.wait_for(scene.parked.id, "task-revoked")
    state.wait_parked(0)


def test_flower_gauge_is_off_if_another_worker_starts_the_task(scene: Scene, journal: Journal) -> None:
    """It adds a task at the worker that received it, and takes it away at the one that started it."""
    scene.control.add_consumer("celery", destination=[scene.on_second], reply=True, timeout=5, limit=1)
    scene.first.term()  # it starts nothing more, and hands its permit on
    journal.let_go("runs", "waits")
    journal.wait_finished(2)
    scene.monitor.wait_for(scene.parked.id, "task-succeeded")
    assert prefetched(scene) == {scene.on_first: 1, scene.on_second: -1}


def test_flowers_gauge_is_right_where_one_worker_does_both(scene: Scene, journal: Journal) -> None:
    journal.let_go("runs", "waits")
    journal.wait_finished(2)
    scene.monitor.wait_for(scene.parked.id, "task-succeeded")
    assert prefetched(scene) == {scene.on_first: 0}


def prefetched(scene: Scene) -> dict[str, int]:
    """Return the gauge ``flower_worker_prefetched_tasks``, as Flower counts it."""
    gauge: Counter[str] = Counter()
    for event in scene.monitor.seen:
        if event["type"] in ("task-received", "task-started"):
            gauge[event["hostname"]] += 1 if event["type"] == "task-received" else -1
    return dict(gauge)
