"""Whether a signal handler has interrupted a hub that waited, and the results that another hub reads in that time."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.asynchronous import Hub

from celery_throttle.worker.celery_side.soft_shutdown import PoolResults, is_interrupted_wait


@pytest.fixture
def hub() -> Iterator[Any]:
    """A hub with a socket, so that it polls."""
    hub: Any = Hub()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        hub.add_reader(ours.fileno(), lambda: None)
        yield hub
        hub.close()


@pytest.fixture
def install() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Install a handler of SIGALRM that stands in the module of Celery's handlers."""
    before = signal.getsignal(signal.SIGALRM)

    def put(function: Callable[[], None]) -> None:
        scope: dict[str, Any] = {"__name__": "celery.apps.worker", "function": function}
        exec("def inner(): function()\ndef handler(*_): inner()", scope)
        signal.signal(signal.SIGALRM, scope["handler"])

    yield put
    signal.signal(signal.SIGALRM, before)


def test_only_a_hub_that_polls_was_waiting(hub: Any, install: Callable[[Callable[[], None]], None]) -> None:
    found: list[tuple[bool, bool]] = []
    install(lambda: found.append((is_interrupted_wait(hub), is_interrupted_wait(Hub()))))

    signal.setitimer(signal.ITIMER_REAL, 0.2)
    hub.run_once()
    assert found == [(True, False)]

    hub.on_tick.add(lambda: signal.raise_signal(signal.SIGALRM))  # amid a turn
    hub.run_once()
    signal.raise_signal(signal.SIGALRM)  # in other code
    assert found[1:] == [(False, False)] * 2
    assert not is_interrupted_wait(hub)


def test_results_are_read_by_the_callbacks_of_the_hub_that_does_not_turn(hub: Any) -> None:
    theirs: Any = Hub()
    whole, parts, broken = (os.pipe() for _ in range(3))
    read: list[object] = []

    def in_parts() -> Iterator[None]:
        read.append(os.read(parts[0], 4))
        yield
        read.append(os.read(parts[0], 4))

    def fails() -> None:
        raise ValueError("no result")

    theirs.add_reader(whole[0], lambda pipe: read.append(os.read(pipe, 4)), whole[0])
    theirs.add_reader(parts[0], in_parts())
    theirs.add_reader(broken[0], fails)
    results = PoolResults(SimpleNamespace(_fileno_to_outq=dict.fromkeys((whole[0], parts[0], broken[0]))), theirs)
    results.read_on(hub)
    for _, pipe in (whole, parts, broken):
        os.write(pipe, b"once")
    hub.run_once()
    os.write(parts[1], b"more")
    hub.run_once()
    assert sorted(map(str, read)) == ["b'more'", "b'once'", "b'once'"]
    assert broken[0] not in theirs.readers

    results.leave(hub)
    os.write(whole[1], b"late")
    hub.call_later(0.01, lambda: None)
    hub.run_once()
    assert len(read) == 3
    theirs.close()
    for pipe in (*whole, *parts, *broken):
        os.close(pipe)
