"""Messages that reach the gate while the worker has no connection to its broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kombu.common import QoS

from celery_throttle.core.settings import Settings
from celery_throttle.tasks.rate_limited import RateLimited
from celery_throttle.worker.gate import Gate
from celery_throttle.worker.runs import WHY, Run
from tests.support.timers import Timers


class Loop(Timers):
    """The loop, too."""

    hub: Any = None
    turning = False

    def call(self, function: Any, *args: Any) -> None:
        function(*args)

    def every_turn(self, tick: Any) -> None:
        """Nothing turns here."""


class Request:
    """A request of a task that cannot run here; at first the result backend is away."""

    id = name = "t"
    acknowledged = False
    on_success = on_timeout = reject = lambda *args: None

    def __init__(self) -> None:
        self.told, self.message = 0, SimpleNamespace(acknowledged=False)

    def on_failure(self, exc_info: object) -> None:
        self.told += 1
        if self.told == 1:
            raise ConnectionError(exc_info)

    def acknowledge(self) -> None:
        self.message.acknowledged = True


class Tasks:
    """Of an app whose function for a key fails."""

    def run_of(self, *args: object) -> object:
        raise ValueError(args)


class Slots:
    """Of a pool that runs nothing by itself."""

    gone, size, in_main_process, passed_on = False, 4, False, True

    def __init__(self) -> None:
        self.given: list[Any] = []

    def discarded(self, request: object) -> bool:
        return request is None

    def run(self, request: object, died: object) -> None:
        self.given.append((request, died))


class Worker:
    """A gate without groups of limits, and Celery's consumer."""

    def __init__(self, tasks: Any) -> None:
        self.loop, self.slots = Loop(), Slots()
        loop: Any = self.loop
        slots: Any = self.slots
        self.gate = Gate(slots, tasks, Settings(""), loop, loop, (), lambda *_: NotImplemented, lambda: None)
        self.qos = self.connect()

    def connect(self) -> QoS:
        conf: dict[str, object] = {}
        self.qos = QoS(lambda **_: None, 4)
        consumer = SimpleNamespace(
            app=SimpleNamespace(conf=SimpleNamespace(accept_content=["json"], get=conf.get)),
            qos=self.qos, strategies={},
            task_consumer=SimpleNamespace(_basic_consume=None, queues=(), channel=None),
        )  # fmt: skip
        self.gate.connected(consumer)
        return self.qos


def test_one_of_a_connection_that_is_gone_is_left_to_the_broker() -> None:
    """Its ETA has come, in Celery's timer thread; else it counts for the next connection when it is held no more."""
    worker = Worker(Tasks())
    worker.gate.disconnected()
    request = Request()
    worker.gate.arrive(request)
    qos = worker.connect()
    worker.loop.ring()
    assert qos.value == 4
    assert not request.told


class Plain:
    """Of an app without limits."""

    def run_of(self, request: object, epoch: int, queues: object) -> Run:  # noqa: ARG002 - as in Tasks
        return Run(request, epoch=epoch)


@pytest.mark.parametrize("connected", [False, True])
def test_unwritable_failure_without_connection_is_left_to_broker(*, connected: bool) -> None:
    """It has run; the broker delivers it again, so nothing is to be written, and no other comes in its place."""
    worker = Worker(Plain())
    request = Request()
    worker.gate.arrive(request)
    (run,) = worker.gate.running.runs
    worker.gate.disconnected()
    if connected:
        worker.connect()
    worker.gate.running._limited(run, RateLimited())
    assert request.told == 1
    assert not worker.gate.held.of(*WHY)
    assert not worker.loop.ring()
    assert request.told == 1
    assert not request.message.acknowledged


def test_stopped_worker_lets_no_run_enter() -> None:
    """A signal has begun a cold shutdown while those that waited were let in, one by one."""
    worker = Worker(Plain())
    run: Any = Run(Request(), epoch=0)
    worker.slots.gone = True
    worker.gate._admission.enter(run)
    assert not worker.slots.given


def test_permit_to_give_back_has_a_timer_after_a_lost_connection() -> None:
    """Celery empties the hub's timer when the connection is lost."""
    worker = Worker(Plain())
    box = SimpleNamespace(urgent=False, lazy=True)
    calls: Any = SimpleNamespace(outbox=box, hungry=False, lazy_since=None)
    admission = worker.gate._admission
    timers = []
    for lost in (False, False, True):
        if lost:
            worker.gate.disconnected()
        calls.lazy_since = None
        assert not admission._is_due(calls, 0)
        timers.append(len(worker.loop.pauses))
    assert timers == [1, 1, 2]
