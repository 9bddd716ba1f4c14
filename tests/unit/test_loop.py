"""The gate's loop on a hub, and how long the thread that consumes waits there for answers to remote control."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.asynchronous import Hub
from kombu.asynchronous.timer import Timer

from celery_throttle.control import remote_step
from celery_throttle.control.remote_step import Remote
from celery_throttle.version import versions
from celery_throttle.worker.loop import Loop
from celery_throttle.worker.wiring import Throttling
from tests.support.waiting import until


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub(Timer())
    yield made
    made.close()


@pytest.fixture
def loop(hub: Hub) -> Iterator[Loop]:
    made = Loop(hub, threaded=False)
    yield made
    made.stop(30)
    made.close()


def test_nothing_of_ours_is_on_the_hub_before_it_begins(hub: Hub) -> None:
    """While a worker greets its neighbours, kombu before 5.7 falls over sockets that it does not know."""
    loop = Loop(hub, threaded=False)
    assert not hub.readers
    loop.reattach()
    assert len(hub.readers) == 1
    loop.close()
    assert not hub.readers


def test_a_post_before_that_is_not_lost(hub: Hub, loop: Loop) -> None:
    done: list[str] = []
    loop.post(done.append, "early")
    loop.reattach()
    hub.run_once()
    assert done == ["early"]


def test_loop_goes_on_in_a_thread_when_its_hub_has_stopped(hub: Hub, loop: Loop) -> None:
    """A caller that posts does not wait for a busy loop, and gets the result when it asks."""
    loop.reattach()
    loop.turn()
    loop.detach()
    assert not hub.readers
    door, done = threading.Event(), list[str]()

    def busy() -> None:
        door.wait()

    loop.post(busy)
    loop.post(done.append, "posted")

    assert not done
    assert not loop.wait(lambda: True, 0.01)
    door.set()
    assert loop.wait(lambda: done == ["posted"], 30)


def test_moved_loop_reads_the_same_connections(loop: Loop) -> None:
    loop.reattach()
    ours, theirs = socket.socketpair()
    read: list[bytes] = []
    loop.add_reader(ours, lambda: read.append(ours.recv(9)))
    loop.detach()
    with ours, theirs:
        theirs.sendall(b"hello")
        until(lambda: read == [b"hello"])
        loop.stop(30)


def test_function_posted_by_a_posted_one_runs_after_it(loop: Loop) -> None:
    """Else a sender would get a lost connection in the middle of its own work, again and again."""
    loop.reattach()
    loop.detach()
    order: list[str] = []

    def outer() -> None:
        loop.post(order.append, "inner")
        order.append("outer")

    loop.post(outer)
    assert loop.wait(lambda: order == ["outer", "inner"], 30)


def test_loop_that_stops_does_not_wait_for_an_event(hub: Hub) -> None:
    """A hub without events waits for up to a second, which the end of a worker would take longer."""
    loop = Loop(hub, threaded=True)
    loop.reattach()
    poll = hub.poller.poll
    hub.poller.poll = lambda timeout: poll(60)
    loop.start()
    until(lambda: loop.wait(lambda: True, 1))
    loop.stop(10)
    assert "celery-throttle-gate" not in {each.name for each in threading.enumerate()}
    loop.close()


# -- answers to remote control, which wait no longer than they have to -------------------------------------------------

WAITS = 30.0


@pytest.fixture
def turning(hub: Hub) -> Iterator[Loop]:
    """One that turns in a thread of its own."""
    made = Loop(hub, threaded=True)
    made.reattach()
    made.start()
    yield made
    made.stop(WAITS)
    made.close()


@pytest.fixture
def door() -> Iterator[threading.Event]:
    """Open at the end, for every thread that still waits."""
    made = threading.Event()
    yield made
    made.set()


def test_error_in_the_loop_reaches_the_caller(turning: Loop) -> None:
    with pytest.raises(ZeroDivisionError):
        turning.ask(lambda: 1 // 0, WAITS)


def test_report_of_a_busy_loop_comes_later(turning: Loop, door: threading.Event) -> None:
    """It is made where the gate lives."""

    def busy() -> None:
        door.wait(WAITS)

    turning.post(busy)
    answers = Remote(None, "w", turning, lambda: {"thread": threading.current_thread().name})
    assert answers.inspect() == {"error": "the gate of this worker is busy: no answer within 0.5 s"}
    door.set()
    until(lambda: answers.inspect() == {"versions": versions(), "thread": "celery-throttle-gate"})


def test_silent_store(turning: Loop, door: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def waits(_: Any, command: str, arguments: Any, *, by: str) -> dict[str, str]:
        asked.append(command)
        door.wait(WAITS)
        return {"ok": f"{command} {arguments} {by}"}

    monkeypatch.setattr(remote_step, "carry_out", waits)
    answers = Remote(None, "w", turning, dict)
    late = "the store did not answer within 0.5 s: it may be done or not, do it again"
    assert answers.steer("a", {}) == {"error": late}
    busy = "the store has not answered the last command yet: ask again in a second"
    assert answers.steer("b", {}) == {"error": busy}, "one thread waits, not one for each command"
    door.set()
    until(lambda: answers.steer("c", {}) == {"ok": "c {} celery control at w"})
    assert "b" not in asked


def test_unexpected_error_is_left_to_celery(turning: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_step, "carry_out", lambda *_, **__: 1 // 0)
    answers = Remote(None, "w", turning, dict)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            answers.steer("a", {})


@pytest.mark.parametrize("broken", ["read_on", "leave"])
def test_loop_is_back_on_its_hub_after_a_turn_without_broker_that_fails(hub: Hub, loop: Loop, broken: str) -> None:
    """A pipe of the pool was closed since it was listed, or no descriptor is left."""

    def part(name: str) -> Any:
        def act(_: Hub) -> None:
            if name == broken:
                raise OSError(9, "Bad file descriptor")

        return act

    results = SimpleNamespace(read_on=part("read_on"), leave=part("leave"), half_read=False)
    slots, gate = SimpleNamespace(results=lambda _: results), SimpleNamespace(timer_lost=lambda: None)
    worker: Any = SimpleNamespace(loop=loop, groups=[], gate=gate, _slots=slots, _hub=hub)
    with pytest.raises(OSError, match="Bad file descriptor"):
        Throttling._turn_without_broker(worker)
    assert loop.hub is hub
