"""What is held in a worker for a while, and how many messages more the broker may deliver meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_throttle.worker.held_back import later as later_module
from celery_throttle.worker.held_back.later import Later
from celery_throttle.worker.runs import State
from tests.support.timers import Timers


class Held:
    """What is known of a run here."""

    state, refusals, request = State.LATER, 0, None


def test_the_broker_delivers_as_many_as_before_when_nothing_is_held_any_more() -> None:
    """More than count wait since as many are parked as may be; when they come again, the store refuses their call."""
    timers: Any = Timers()
    notices: Any = SimpleNamespace(crowded=lambda request: None)
    changes: list[int] = []
    later = Later(timers, timers, changes.append, notices)
    runs: list[Any] = [Held() for _ in range(250)]
    for run in runs:
        later.crowded(run, lambda run: later.put_off([run], lambda here: None))
    assert sum(changes) == 200
    timers.ring()
    assert sum(changes) == len(later.refused) == 250
    timers.ring()
    assert sum(changes) == 0


class Here:
    """A worker in which tasks are held."""

    def __init__(self) -> None:
        self.timers = Timers()
        self.changes: list[int] = []
        self.said: list[Any] = []
        notices: Any = SimpleNamespace(crowded=self.said.append)
        timers: Any = self.timers
        self.later = Later(timers, timers, self.changes.append, notices)

    def crowded(self, count: int) -> list[Any]:
        """So many may not be parked, and still may not when they come again."""
        runs = [Held() for _ in range(count)]
        for run in runs:
            self.again(run)
        return runs

    def again(self, run: Any) -> None:
        self.later.crowded(run, self.again)


@pytest.mark.parametrize("count", [200, 205])
def test_that_many_wait_is_said_once_a_minute(
    count: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each comes again every few seconds, one by one, and is held again."""
    now = 100.0
    monkeypatch.setattr(later_module, "monotonic", lambda: now)
    here = Here()
    here.crowded(count)
    here.timers.ring()
    assert caplog.text.count("tasks wait in this worker") == 1
    now += 60
    here.timers.ring()
    assert caplog.text.count("tasks wait in this worker") == 2


def test_one_that_may_not_be_parked_for_days_comes_again_each_time() -> None:
    here = Here()
    (run,) = here.crowded(1)
    for _ in range(3000):
        here.timers.ring()
    assert run.refusals == 3001
    assert here.timers.pauses[:8] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert len(here.said) == 1
    assert here.later.many == {run}


def test_what_the_broker_delivers_again_is_not_held_any_more() -> None:
    here = Here()
    many, refused = here.crowded(3), [Held()]
    later: Any = here.later
    later.put_off(refused, lambda runs: None)
    assert set(later.forget()) == {*many, *refused}
    for run in (*many, *refused):
        run.state = State.GONE
    before = list(here.changes)
    here.timers.ring()
    assert here.changes == before, "the next connection begins with Celery's own number"
    assert (later.many, later.refused) == (set(), set())
    here.crowded(1)
    later.put_off([Held()], lambda runs: None)
    assert here.changes == [*before, 1, 1]
