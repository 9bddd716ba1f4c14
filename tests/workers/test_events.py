"""Events: ours carry their facts, and do not disturb the views of `celery events` and Flower."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from celery import states

import celery_throttle
from celery_throttle import DuplicateTask, RateLimited, Throttled
from tests.support.kit import begun, new_app, task_maker
from tests.support.monitor import Monitor
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.testing import ThrottleTest

APP = new_app("events", worker_send_task_events=True, task_send_sent_event=True)
make_task = task_maker(APP)


def be_limited() -> None:
    raise RateLimited(0.01, max_rounds=2)


raises = make_task("raises", base=Throttled, singleton=True, on_conflict="raise")
skips = make_task("skips", base=Throttled, singleton=True, on_conflict="skip")
one = make_task("one", base=Throttled, limit=1)
limited = make_task("limited", be_limited, base=Throttled, limit=4)


@pytest.fixture
def monitor(throttle: ThrottleTest) -> Iterator[Monitor]:
    with Monitor(APP) as monitor, throttle.run_worker():
        yield monitor


def test_duplicates(throttle: ThrottleTest, monitor: Monitor) -> None:
    with throttle.gate():
        first = begun(throttle, raises.delay("a"))
        with pytest.raises(DuplicateTask):
            raises.apply_async(("a",), task_id="here")
        elsewhere = APP.send_task(raises.name, args=("a",))
        skipped = begun(throttle, APP.send_task(skips.name, args=("b",)))
        again = APP.send_task(skips.name, args=("b",))
        monitor.wait_for("here", "throttle-duplicate")
        monitor.wait_for(elsewhere.id, "throttle-duplicate", "task-failed")
        monitor.wait_for(again.id, "throttle-duplicate", "task-revoked")
    monitor.wait_for(first.id, "task-succeeded")
    monitor.wait_for(skipped.id, "task-succeeded")

    of_elsewhere = [event for event in monitor.seen if event.get("uuid") == elsewhere.id]
    (told,) = [event for event in of_elsewhere if event["type"] == "throttle-duplicate"]
    assert (told["existing"], told["verdict"], told["name"]) == (first.id, "duplicate", raises.name)
    assert {task.state for task in monitor.state.tasks.values()} == {states.SUCCESS, states.FAILURE, states.REVOKED}
    assert "here" not in monitor.state.tasks, "it was never published, so no monitor should list it"


def test_returned_task_is_shown_as_started_when_it_runs_again(throttle: ThrottleTest, monitor: Monitor) -> None:
    with throttle.gate() as gate:
        result = limited.delay()
        for _ in range(2):
            gate.wait_for(1)
            gate.open(1)
        gate.wait_for(1)
        until(lambda: monitor.count(result.id, "throttle-rate-limited") == 2)
        until(lambda: monitor.count(result.id, "task-started") == 3)
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


def test_parked_and_resumed(throttle: ThrottleTest, monitor: Monitor) -> None:
    with throttle.gate():
        first = begun(throttle, one.delay("a"))
        second = one.delay("b")
        monitor.wait_for(second.id, "task-received", "throttle-parked")
        assert "throttle-resumed" not in monitor.types(second.id)
    monitor.wait_for(first.id, "task-succeeded")
    monitor.wait_for(second.id, "throttle-resumed", "task-succeeded")
    parked, resumed = (each for each in monitor.seen if each.get("uuid") == second.id and "throttle" in each["type"])
    assert (parked["name"], parked["queue"], parked["limits"]) == (one.name, "celery", [one.name])
    assert resumed["waited"] > 0
    assert "throttle-parked" not in monitor.types(first.id)
    assert monitor.state.tasks[second.id].state == states.SUCCESS
