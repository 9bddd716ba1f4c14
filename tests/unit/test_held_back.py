"""Messages that a worker holds for a while, and how many more the broker may deliver in that time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from celery_throttle.worker.held_back import put_off as put_off_module
from celery_throttle.worker.held_back.held_back import HeldBack
from celery_throttle.worker.held_back.outage import Outage
from celery_throttle.worker.held_back.put_off import PutOff
from celery_throttle.worker.runs import State
from tests.support.timers import Timers

NOTHING: Any = None


class Held:
    """A run, as this module needs it."""

    state, refusals, request, group, came = State.WAITING, 0, None, "", 0.0


class Here:
    """A worker in which tasks are held.

    Attributes:
        more: numbers of messages that the broker may deliver, one for each change.
    """

    def __init__(self) -> None:
        self.timers = timers = Timers()
        self.more: list[int] = []
        self.said: list[Any] = []
        notices: Any = SimpleNamespace(put_off=lambda *about: self.said.append(about))
        held: Any = HeldBack(timers, timers, self.more.append)  # type: ignore[arg-type]
        self.held = held
        self.crowds = PutOff(held, notices)

    @staticmethod
    def runs(count: int) -> list[Any]:
        return [Held() for _ in range(count)]

    def crowded(self, count: int) -> list[Any]:
        """So many may not be parked, and still may not when they come again."""
        for run in (found := self.runs(count)):
            self.again(run)
        return found

    def again(self, run: Any) -> None:
        self.crowds.hold(run, State.CROWDED, self.again)

    def put_off(self, runs: list[Any], why: State = State.STORE_REFUSES) -> None:
        self.held.pause(runs, why, 1.0, lambda here: None)


@pytest.fixture
def here() -> Here:
    return Here()


def test_broker_delivers_as_before_when_nothing_is_held(here: Here) -> None:
    """More than count wait since as many are parked as may be; when they come again, the store refuses their call."""
    for run in here.runs(250):
        here.crowds.hold(run, State.CROWDED, lambda run: here.put_off([run]))
    assert here.more[-1] == 200
    here.timers.ring()
    assert here.more[-1] == here.held.count(State.STORE_REFUSES) == 250
    here.timers.ring()
    assert here.more[-1] == 0


@pytest.mark.parametrize("count", [200, 205])
def test_large_number_of_held_tasks_is_logged_once_a_minute(
    here: Here, count: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each comes again every few seconds, one by one, and is held again."""
    now = 100.0
    monkeypatch.setattr(put_off_module, "monotonic", lambda: now)
    here.crowded(count)
    here.timers.ring()
    assert caplog.text.count("tasks wait in this worker") == 1
    now += 60
    here.timers.ring()
    assert caplog.text.count("tasks wait in this worker") == 2


def test_task_that_may_not_be_parked_comes_again_each_time(here: Here) -> None:
    (run,) = here.crowded(1)
    for _ in range(3000):
        here.timers.ring()
    assert run.refusals == 3001
    assert here.timers.pauses[:8] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert len(here.said) == 1
    assert here.held.of(State.CROWDED) == [run]


def test_redelivered_message_is_not_held_any_more() -> None:
    """Nor is its run woken by a pause that was asked for before it was held again."""
    here, woken = Here(), list[Any]()
    runs = [*here.crowded(3), refused := here.runs(1)[0]]
    here.held.pause([refused], State.STORE_REFUSES, 1.0, woken.extend)
    here.held.forget()
    assert {run.state for run in runs} == {State.GONE}
    here.held.pause([refused], State.STORE_REFUSES, 1.0, woken.extend)
    for _ in range(4):
        here.timers.ring_one()
    assert not woken
    assert [run in here.held for run in runs] == [False, False, False, True]
    here.timers.ring_one()
    assert woken == [refused]
    assert here.more[-1] == 0, "the next connection begins with Celery's own number"
    here.crowded(1)
    here.put_off(here.runs(1))
    assert here.more[-2:] == [1, 2]


def test_forgotten_runs_keep_the_reason_that_is_spared(here: Here) -> None:
    """A stopping worker still waits for unsafe messages."""
    saving, away = here.runs(2)
    here.held.hold(saving, State.SAVING)
    here.held.hold(away, State.STORE_AWAY)
    here.held.forget(State.SAVING)
    assert saving in here.held
    assert away.state is State.GONE
    assert here.more[-1] == 1


def test_lost_store_lets_others_in_for_runs_of_its_last_call(here: Here) -> None:
    """They may wait for the store for as long as those that it was not asked about."""
    runs = here.runs(3)
    for run, state in zip(runs, (State.ASKING, State.PARKING, State.ASKING), strict=True):
        here.held.hold(run, state)
    outage = Outage("", "hold", here.held, NOTHING, NOTHING, Mock())
    outage.begin(ConnectionError("lost"), {runs[2]})
    assert [run.state for run in runs] == [State.UNSURE, State.MAYBE_PARKED, State.STORE_AWAY]
    assert here.more[-1] == len(runs)
    outage.begin(ConnectionError("lost again"), set())
    outage.over()
    assert here.more[-1] == 2, "until their call is answered"


@pytest.mark.parametrize("again", [False, True])
def test_outage_leaves_runs_of_a_stopping_worker_to_the_broker(*, again: bool) -> None:
    """A signal has begun a cold shutdown while the first run fails."""
    here, failed = Here(), list[Any]()
    runs = here.runs(2)

    def fail(run: Any, error: Exception) -> None:  # noqa: ARG001 - as in BackendAway
        failed.append(run)
        here.held.forget()

    outage = Outage("", "fail", here.held, NOTHING, fail, Mock())
    if again:  # the connection came back, and broke before the store answered
        outage.unreachable(ConnectionError("refused"))
    for run in runs:
        here.held.hold(run, State.ASKING)
    if again:
        outage.begin(ConnectionError("lost"), set(runs))
    else:
        outage.unreachable(ConnectionError("refused"))
    assert failed == runs[:1]
