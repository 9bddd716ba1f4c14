"""A link's connection to a server that behaves badly."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic
from typing import Any

import pytest
from kombu.asynchronous import Hub
from kombu.asynchronous.timer import Timer

from celery_throttle.core.keys import Keys
from celery_throttle.errors import StoreUnavailable
from celery_throttle.store.calls import Store
from celery_throttle.store.reading import UnreadableReply, read
from celery_throttle.store.scripts import pack
from celery_throttle.store.servers.client import TIMEOUT, connection_factory
from celery_throttle.worker.loop import Loop
from celery_throttle.worker.reported.paced_log import PacedLog
from celery_throttle.worker.store_side.link import Link, NoAnswer
from celery_throttle.worker.timekeeper import Timekeeper
from tests.support.ports import free_port
from tests.support.waiting import until


def in_background(function: Any) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


class Server:
    """Greets each client, then sends the test's bytes."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listening.getsockname()[1]}"
        self.peer: socket.socket
        self._greeting = threading.Event()
        self._thread = in_background(self._greet)

    def _greet(self) -> None:
        self.peer, _ = self._listening.accept()
        self.peer.settimeout(0.02)
        while not self._greeting.is_set():
            with suppress(TimeoutError):
                self.peer.sendall(b"+OK\r\n" * len(re.findall(rb"^\*\d", self.peer.recv(4096), re.MULTILINE)))

    def greeted(self) -> None:
        self._greeting.set()
        self._thread.join()

    def close(self) -> None:
        self.peer.close()
        self._listening.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


class Linked:
    """A link to a server, on a loop that the test turns."""

    def __init__(self, url: str, lease: float = 60.0) -> None:
        self.hub: Any = Hub(Timer())
        self.loop = Loop(self.hub, threaded=False)
        self.loop.reattach()
        self.broken: list[Exception] = []
        self.replies: list[Any] = []
        self.failed: list[float] = []
        self.rested = 0
        nothing: Any = lambda *args: None  # noqa: E731
        failed: Any = lambda error: self.failed.append(monotonic())  # noqa: E731
        self.timekeeper = Timekeeper()
        make, log = connection_factory(url), PacedLog(self.timekeeper)
        self.link = Link(self.loop, self.timekeeper, make, lease, log, nothing, self.broken.append, failed, self._rests)
        self.link.connect()

    def _rests(self) -> None:
        self.rested += 1

    def ask(self, reader: Any = None) -> None:
        self.link.send(Store(Keys("throttle"), 60.0).crowd("limit"), reader or self.replies.append)

    def turn_until(self, condition: Any) -> None:
        def turned() -> Any:
            self.loop.wake()
            self.hub.run_once()
            return condition()

        until(turned)

    def close(self) -> None:
        self.timekeeper.stop()
        self.link.close()
        self.loop.close()
        self.hub.close()


@pytest.fixture
def linked(server: Server) -> Iterator[Linked]:
    made = Linked(server.url)
    made.turn_until(lambda: made.link.up)
    server.greeted()
    yield made
    made.close()


def unreadable(raw: object) -> None:
    """Read a reply as a text, which it is not."""
    read(bytes.decode, raw)


@pytest.mark.parametrize(
    ("readers", "said", "replies"),
    [
        pytest.param([None], b"$10\r\nhalf", [NoAnswer], id="one that stops half way is no reply"),
        pytest.param([None], b":no number\r\n", [StoreUnavailable], id="a number that is none"),
        pytest.param([None], b"$x\r\nab\r\n", [StoreUnavailable], id="a length that is none"),
        pytest.param([None], b"*1\r\n:\xff\r\n", [StoreUnavailable], id="a list with a number that is none"),
        # Which call the next one would belong to cannot be known any more.
        pytest.param([], b"+unasked\r\n", [], id="one that was not asked for"),
        pytest.param([], b"?\r\n", [], id="one of no kind"),
        # It counts as lost: other pending calls get an error, and the call can be sent again.
        pytest.param([unreadable, None], b"$1\r\n\xff\r\n:7\r\n", [StoreUnavailable], id="unreadable to its reader"),
    ],
)
def test_reply_that_is_none_breaks_the_connection(
    server: Server, linked: Linked, readers: list[Any], said: bytes, replies: list[type[Exception]]
) -> None:
    for reader in readers:
        linked.ask(reader)
    server.peer.sendall(said)
    linked.turn_until(lambda: linked.broken)
    assert [type(reply) for reply in linked.replies] == replies
    (error,) = linked.broken
    assert unreadable not in readers or isinstance(error, UnreadableReply)
    assert not linked.link.up


def test_error_after_a_reply_leaves_the_connection(server: Server, linked: Linked) -> None:
    linked.ask(lambda raw: {}[raw])
    linked.ask()
    server.peer.sendall(b":1\r\n:7\r\n")
    linked.turn_until(lambda: linked.replies)
    assert linked.replies == [7]
    assert linked.link.up


def test_slow_command_of_the_server_is_waited_for(server: Server, linked: Linked) -> None:
    """It counts as silent only some time after that."""
    linked.timekeeper.start()
    linked.link.wait(("WAIT", 1, 3000), 3.0, linked.replies.append)
    threading.Timer(1.5 * TIMEOUT, server.peer.sendall, [b":1\r\n"]).start()
    linked.turn_until(lambda: linked.replies or linked.broken)
    assert (linked.replies, linked.broken) == ([1], [])


def test_a_socket_that_was_closed_is_off_the_hub(server: Server, linked: Linked) -> None:
    """Also while a forked child still has it open: the kernel then still reports it."""
    inherited = linked.link._connection._sock.dup()
    server.peer.close()
    with inherited:
        linked.turn_until(lambda: linked.broken)
        assert [fd for fd, _ in linked.hub.poller.poll(0)] == []
        assert len(linked.hub.readers) == 1  # wakes the loop
        linked.loop.reattach()


def test_reconnecting_never_waits_for_longer_than_a_third_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    later = Timekeeper.later

    def note(timekeeper: Timekeeper, seconds: float, call: Any) -> Any:
        if call.__name__ == "_look_soon":
            pauses.append(seconds)
        return later(timekeeper, seconds, call)

    monkeypatch.setattr(Timekeeper, "later", note)
    linked = Linked(f"redis://127.0.0.1:{free_port()}", lease=0.6)  # no server is there
    linked.timekeeper.start()
    try:
        linked.turn_until(lambda: len(linked.failed) >= 8)
    finally:
        linked.close()
    assert max(pauses) == 0.6 / 3, "the pause grows, and no further"


def test_a_call_that_moves_is_not_lost_however_long_it_takes(server: Server, linked: Linked) -> None:
    """A network that takes a little of it, and a little more just before the time is over."""
    linked.timekeeper.start()
    linked.link._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    server.peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    call = ("SET", "key", b"x" * (3 << 20))
    linked.link.wait(call, 0, linked.replies.append)
    began = monotonic()

    def read_slowly() -> None:
        left = len(pack(call))
        while left:
            with suppress(TimeoutError):
                left -= len(server.peer.recv(1 << 18))
            time.sleep(0.15 * TIMEOUT)
        server.peer.sendall(b"+OK\r\n")

    reader = in_background(read_slowly)
    linked.turn_until(lambda: linked.replies or linked.broken)
    reader.join()
    assert (linked.replies, linked.broken) == ([b"OK"], [])
    assert monotonic() - began > TIMEOUT


def test_a_call_that_stops_moving_is_lost(linked: Linked) -> None:
    linked.timekeeper.start()
    linked.link.wait(("SET", "key", b"x" * (30 << 20)), 0, linked.replies.append)
    linked.turn_until(lambda: linked.broken)
    assert [type(reply) for reply in linked.replies] == [NoAnswer]


def test_calls_after_a_stuck_one_come_after_it(server: Server, linked: Linked) -> None:
    first, second = ("SET", "key", b"x" * (9 << 20)), ("SET", "key", b"y")
    linked.link.wait(first, 9, linked.replies.append)
    linked.link.wait(second, 9, linked.replies.append)
    wanted, got = pack(first) + pack(second), bytearray()

    def read() -> None:
        while len(got) < len(wanted):
            with suppress(TimeoutError):
                got.extend(server.peer.recv(1 << 20))
        server.peer.sendall(b"+1\r\n+2\r\n")

    reader = in_background(read)
    linked.turn_until(lambda: len(linked.replies) == 2)
    reader.join()
    assert linked.replies == [b"1", b"2"]
    assert bytes(got) == wanted
    assert not linked.hub.writers
