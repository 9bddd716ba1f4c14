"""The gate's loop on a hub."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from kombu.asynchronous import Hub
from kombu.asynchronous.timer import Timer

from celery_throttle.worker.loop import Loop
from tests.support.waiting import until


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub(Timer())
    yield made
    made.close()


def test_nothing_of_ours_is_on_the_hub_before_it_begins(hub: Hub) -> None:
    """While a worker greets its neighbours, kombu before 5.7 falls over sockets that it does not know."""
    loop = Loop(hub, threaded=False)
    assert not hub.readers
    loop.reattach()
    assert len(hub.readers) == 1
    loop.close()
    assert not hub.readers


def test_a_post_before_that_is_not_lost(hub: Hub) -> None:
    done: list[str] = []
    loop = Loop(hub, threaded=False)
    loop.post(done.append, "early")
    loop.reattach()
    hub.run_once()
    assert done == ["early"]
    loop.close()


def wait_for(door: threading.Event) -> None:
    door.wait()


def test_loop_goes_on_in_a_thread_when_its_hub_has_stopped(hub: Hub) -> None:
    """A caller that posts does not wait for a busy loop, and gets the result when it asks."""
    loop = Loop(hub, threaded=False)
    loop.reattach()
    loop.turn()
    loop.detach()
    assert not hub.readers
    door, done = threading.Event(), list[str]()

    loop.post(wait_for, door)
    loop.post(done.append, "posted")

    assert not done
    assert not loop.wait(lambda: True, 0.01)
    door.set()
    assert loop.wait(lambda: done == ["posted"], 30)
    loop.stop(30)
    loop.close()


def test_moved_loop_reads_the_same_connections(hub: Hub) -> None:
    loop = Loop(hub, threaded=False)
    loop.reattach()
    ours, theirs = socket.socketpair()
    read: list[bytes] = []
    loop.add_reader(ours, lambda: read.append(ours.recv(9)))
    loop.detach()
    with ours, theirs:
        theirs.sendall(b"hello")
        until(lambda: read == [b"hello"])
        loop.stop(30)
        loop.close()


def test_function_posted_by_a_posted_one_runs_after_it(hub: Hub) -> None:
    """Else a sender would get a lost connection in the middle of its own work, again and again."""
    loop = Loop(hub, threaded=False)
    loop.reattach()
    loop.detach()
    order: list[str] = []

    def outer() -> None:
        loop.post(order.append, "inner")
        order.append("outer")

    loop.post(outer)
    assert loop.wait(lambda: order == ["outer", "inner"], 30)
    loop.stop(30)
    loop.close()


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
