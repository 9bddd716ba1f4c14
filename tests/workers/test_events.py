"""Events: ours carry their facts, and do not disturb the views of `celery events` and Flower."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import states

import celery_throttle
from celery_throttle import DuplicateTask
from tests.support.waiting import until
from tests.workers.conftest import ONCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from tests.support.journal import Journal
    from tests.support.workers import Workers

LIMITED = "tests.support.apps.limited"


class Monitor:
    """A monitor's view of the events: `celery events` and Flower have this very state."""

    def __init__(self, app: Any) -> None:
        self.state = app.events.State()
        self.seen: list[dict[str, Any]] = []
        self._connection = app.connection_for_read()
        self._receiver = app.events.Receiver(self._connection, handlers={"*": self._hear})
        self._thread = threading.Thread(target=self._receiver.capture, kwargs={"wakeup": False}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        until(lambda: self.seen, timeout=20)  # heartbeats
        return self

    def __exit__(self, *_: object) -> None:
        self._receiver.should_stop = True
        self._thread.join(10)
        self._connection.release()

    def _hear(self, event: dict[str, Any]) -> None:
        self.seen.append(event)
        self.state.event(event)

    def types(self, task_id: str) -> list[str]:
        return [event["type"] for event in self.seen if event.get("uuid") == task_id]

    def wait_for(self, task_id: str, *types: str, timeout: float = 20) -> None:
        until(
            lambda: set(types) <= set(self.types(task_id)), timeout=timeout, describe=lambda: str(self.types(task_id))
        )

    def states(self) -> set[str]:
        return {task.state for task in self.state.tasks.values()}


@pytest.fixture
def monitor(workers: Workers) -> Iterator[Monitor]:
    workers.conf |= {"worker_send_task_events": True, "task_send_sent_event": True}
    workers.start(ONCE, concurrency=3)
    with Monitor(workers.app(ONCE).app) as monitor:
        yield monitor


def test_duplicates(monitor: Monitor, workers: Workers, journal: Journal) -> None:
    app = workers.app(ONCE)
    first = journal.wait_begun(app.hold_raise.delay("a"))
    with pytest.raises(DuplicateTask):
        app.hold_raise.apply_async(("a",), task_id="here")
    elsewhere = app.app.send_task(app.hold_raise.name, args=("a",))
    skipped = app.app.send_task(app.hold_skip.name, args=("b",))
    again = app.app.send_task(app.hold_skip.name, args=("b",))
    monitor.wait_for("here", "throttle-duplicate")
    monitor.wait_for(elsewhere.id, "throttle-duplicate", "task-failed")
    monitor.wait_for(again.id, "throttle-duplicate", "task-revoked")
    journal.let_go("a", "b")
    monitor.wait_for(first.id, "task-succeeded")
    monitor.wait_for(skipped.id, "task-succeeded")

    (told,) = [
        event for event in monitor.seen if (event.get("uuid"), event["type"]) == (elsewhere.id, "throttle-duplicate")
    ]
    assert (told["existing"], told["verdict"], told["name"]) == (first.id, "duplicate", app.hold_raise.name)
    assert monitor.states() == {states.SUCCESS, states.FAILURE, states.REVOKED}
    assert "here" not in monitor.state.tasks, "it was never published, so no monitor should list it"


def test_returned_task_is_shown_as_started_when_it_runs_again(
    workers: Workers, monitor: Monitor, journal: Journal
) -> None:
    app = workers.start_app(LIMITED, queues="limited")
    result = app.call.apply_async(("told off", 0.01), queue="limited")
    journal.wait_started(3, "told off")  # the second run was on when the third began
    monitor.wait_for(result.id, "task-started", "throttle-rate-limited", timeout=5)
    assert monitor.state.tasks[result.id].state == states.STARTED


def test_no_event_of_ours_looks_like_one_of_a_task() -> None:
    """Each type that begins with ``task-`` becomes a state of the task, which outranks STARTED."""
    root = Path(celery_throttle.__file__).parent
    texts = [path.read_text("utf-8") for path in root.rglob("*.py")]
    events = {event for text in texts for event in re.findall(r'"((?:task|throttle)-[a-z-]+)"', text)}
    assert events == {
        "throttle-duplicate",
        "throttle-lease-lost",
        "throttle-parked",
        "throttle-rate-limited",
        "throttle-resumed",
    }


def test_parked_and_resumed(workers: Workers, monitor: Monitor, journal: Journal) -> None:
    app = workers.app(ONCE)
    first = journal.wait_begun(app.hold_one.delay("a"))
    second = app.hold_one.delay("b")
    monitor.wait_for(second.id, "task-received", "throttle-parked")
    journal.let_go("a", "b")
    monitor.wait_for(first.id, "task-succeeded")
    monitor.wait_for(second.id, "throttle-resumed", "task-succeeded")
    parked, resumed = (each for each in monitor.seen if each.get("uuid") == second.id and "throttle" in each["type"])
    assert (parked["name"], parked["queue"], parked["limits"]) == (
        second_name := app.hold_one.name,
        "celery",
        [second_name],
    )
    assert resumed["waited"] > 0
    assert "throttle-parked" not in monitor.types(first.id)
    assert monitor.state.tasks[second.id].state == states.SUCCESS
