"""How long the thread that consumes waits for an answer to remote control: not longer than it has to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kombu.asynchronous import Hub
from kombu.asynchronous.timer import Timer

from celery_throttle.control import remote_step
from celery_throttle.control.remote_step import Remote
from celery_throttle.version import versions
from celery_throttle.worker.loop import Loop
from tests.support.waiting import until

WAITS = 30.0


@pytest.fixture
def loop() -> Iterator[Loop]:
    """One that turns in a thread of its own."""
    hub = Hub(Timer())
    made = Loop(hub, threaded=True)
    made.reattach()
    made.start()
    yield made
    made.stop(WAITS)
    made.close()
    hub.close()


@pytest.fixture
def door() -> Iterator[threading.Event]:
    """Open at the end, for every thread that still waits."""
    made = threading.Event()
    yield made
    made.set()


def test_a_report_is_made_where_the_gate_lives(loop: Loop) -> None:
    told = Remote(None, "w", loop, lambda: {"thread": threading.current_thread().name}).inspect()
    assert told == {"versions": versions(), "thread": "celery-throttle-gate"}


def test_error_in_the_loop_reaches_the_caller(loop: Loop) -> None:
    with pytest.raises(ZeroDivisionError):
        loop.ask(lambda: 1 // 0, WAITS)


def test_a_loop_that_is_busy(loop: Loop, door: threading.Event) -> None:

    def busy() -> None:
        door.wait(WAITS)

    loop.post(busy)
    answers = Remote(None, "w", loop, dict)
    assert answers.inspect() == {"error": "the gate of this worker is busy: no answer within 0.5 s"}
    door.set()
    until(lambda: answers.inspect() == {"versions": versions()})


def test_silent_store(loop: Loop, door: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def waits(_: Any, command: str, arguments: Any, *, by: str) -> dict[str, str]:
        asked.append(command)
        door.wait(WAITS)
        return {"ok": f"{command} {arguments} {by}"}

    monkeypatch.setattr(remote_step, "carry_out", waits)
    answers = Remote(None, "w", loop, dict)
    late = "the store did not answer within 0.5 s: it may be done or not, do it again"
    assert answers.steer("a", {}) == {"error": late}
    busy = "the store has not answered the last command yet: ask again in a second"
    assert answers.steer("b", {}) == {"error": busy}, "one thread waits, not one for each command"
    door.set()
    until(lambda: answers.steer("c", {}) == {"ok": "c {} celery control at w"})
    assert "b" not in asked


def test_unexpected_error_is_left_to_celery(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_step, "carry_out", lambda *_, **__: 1 // 0)
    answers = Remote(None, "w", loop, dict)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            answers.steer("a", {})
