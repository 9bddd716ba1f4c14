"""One error that nobody foresaw, at each line on the way to a connection: the next look connects again."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu.asynchronous import Hub
from kombu.asynchronous.timer import Timer

from celery_throttle.core.keys import Keys
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.store.calls import Store
from celery_throttle.store.servers.client import connection_factory, make_client
from celery_throttle.worker.loop import Loop
from celery_throttle.worker.reported.paced_log import PacedLog
from celery_throttle.worker.store_side.link import Link
from celery_throttle.worker.store_side.listener import Listener
from celery_throttle.worker.timekeeper import Timekeeper
from tests.support.waiting import until


class Unforeseen(Exception):
    """None that any code has a branch for."""


class Fault:
    """Raises when it is called for the first time after it was armed, in place of the call."""

    def __init__(self, error: BaseException) -> None:
        self._error, self.armed, self.struck = error, False, False

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def struck(*args: Any, **kwargs: Any) -> Any:
            if self.armed and not self.struck:
                self.struck = True
                raise self._error
            return call(*args, **kwargs)

        return struck


class Wired:
    """A link and a listener to a server, on a loop that the test turns."""

    def __init__(self, url: str) -> None:
        self.hub: Any = Hub(Timer())
        self.loop = Loop(self.hub, threaded=False)
        self.loop.reattach()
        self.timekeeper = Timekeeper()
        self.replies: list[Any] = []
        self.hints: list[str] = []
        make, log, nothing = connection_factory(url), PacedLog(self.timekeeper), lambda *_: None
        wire = self.loop, self.timekeeper, make, 3.0, log
        self.link = Link(*wire, nothing, nothing, nothing, nothing)
        self.listener = Listener(*wire, "hints", self.hints.append, nothing)

    def turn_until(self, condition: Any) -> None:
        def turned() -> Any:
            self.loop.wake()
            self.hub.run_once()
            return condition()

        until(turned)

    def begin(self) -> None:
        self.timekeeper.start()
        self.link.connect()
        self.listener.connect()

    def answers(self) -> None:
        """Both connections work."""
        self.turn_until(lambda: self.link.up and self.listener.subscribed)
        self.replies.clear()

        def answered() -> bool:
            if self.link.up and self.link.answered and not any(type(each) is int for each in self.replies):
                self.link.send(Store(Keys("throttle"), 60.0).crowd("limit"), self.replies.append)
            return any(type(each) is int for each in self.replies)

        self.turn_until(answered)

    def close(self) -> None:
        self.timekeeper.stop()
        self.link.close()
        self.listener.close()
        self.loop.close()
        self.hub.close()


@pytest.fixture
def wired(own_server: EmbeddedServer) -> Iterator[Wired]:
    made = Wired(own_server.url)
    yield made
    made.close()


def at_make(wired: Wired, fault: Fault, patch: pytest.MonkeyPatch) -> None:
    for wire in (wired.link, wired.listener):
        patch.setattr(wire, "_make", fault.before(wire._make))


def at_thread(wired: Wired, fault: Fault, patch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 - as all faults
    patch.setattr(threading.Thread, "start", fault.before(threading.Thread.start))


def at_duplicates(wired: Wired, fault: Fault, patch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    patch.setattr(os, "dup", fault.before(os.dup))


def at_hub(wired: Wired, fault: Fault, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wired.hub, "add_reader", fault.before(wired.hub.add_reader))


def at_greeting(wired: Wired, fault: Fault, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wired.link, "_on_up", fault.before(wired.link._on_up))


def at_subscribing(wired: Wired, fault: Fault, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wired.listener, "_ask", fault.before(wired.listener._ask))


def at_telling(wired: Wired, fault: Fault, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wired.link, "_on_broken", fault.before(wired.link._on_broken))


def at_reading(wired: Wired, fault: Fault, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wired.link, "_received", fault.before(wired.link._received))


def at_writing(wired: Wired, fault: Fault, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wired.link, "_send_now", fault.before(wired.link._send_now))


def at_closing(wired: Wired, fault: Fault, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wired.link._connection, "disconnect", fault.before(wired.link._connection.disconnect))


FAULTS = [
    at_make, at_thread, at_duplicates, at_hub, at_greeting, at_subscribing, at_telling, at_reading, at_writing,
    at_closing,
]  # fmt: skip


@pytest.mark.parametrize("at", FAULTS, ids=[each.__name__ for each in FAULTS])
@pytest.mark.parametrize(
    "error", [Unforeseen("bug"), OSError(errno.EMFILE, "Too many open files"), RuntimeError("can't start new thread")]
)
def test_connects_again_after_an_error_at_any_line(
    wired: Wired, own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, at: Any, error: Exception
) -> None:
    wired.begin()
    wired.answers()
    fault = Fault(error)
    at(wired, fault, monkeypatch)
    fault.armed = at in (at_telling, at_closing)
    own_server.kill()
    wired.turn_until(lambda: not wired.link.up and not wired.listener.up)
    fault.armed = True
    own_server.restart()
    wired.turn_until(lambda: wired.link.up and wired.listener.subscribed)
    wired.answers()
    with make_client(own_server.url) as client:
        client.publish("hints", "ready q")
    wired.turn_until(lambda: wired.hints)
    assert fault.struck
    assert len(wired.hub.readers) == 3, "each connection, and what wakes the loop"


def test_a_full_network_needs_no_descriptor(wired: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one to write with is there since the connection stands."""
    wired.begin()
    wired.answers()

    def none_left(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "dup", none_left)
    wired.link.wait(("SET", "key", b"x" * (30 << 20)), 60, wired.replies.append)
    assert wired.hub.writers, "the network takes less at once"
    wired.turn_until(lambda: wired.replies[1:])
    assert wired.replies[1:] == [b"OK"]


def test_attempts_keep_no_descriptors(wired: Wired) -> None:
    wired.begin()
    wired.answers()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        wired.link.start_over(Unforeseen("again"))
        wired.listener.start_over(Unforeseen("again"))
        wired.answers()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
