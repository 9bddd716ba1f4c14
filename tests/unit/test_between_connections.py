"""Messages that reach the gate while the worker has no connection to its broker, or is stopping."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from kombu.common import QoS

from celery_throttle.core.settings import Settings
from celery_throttle.tasks.rate_limited import RateLimited
from celery_throttle.worker.celery_side.other_jobs import OtherJobs
from celery_throttle.worker.gate import Gate
from celery_throttle.worker.runs import WHY, Content, Run
from celery_throttle.worker.stopping import Stopping
from celery_throttle.worker.store_side.sifting import Sifting
from tests.support.timers import Timers
from tests.unit.runs import request_of


class Loop(Timers):
    """The loop, too; nothing turns here."""

    hub: Any = None
    turning = False

    def call(self, function: Any, *args: Any) -> None:
        function(*args)

    def every_turn(self, tick: Any) -> None: ...


def any_of(value: Any) -> Any:
    return value


def broken(*args: object) -> Any:
    raise ValueError(args)


def plain(request: Any, epoch: int, _: object) -> Run:
    return Run(request, Content(request.id), epoch=epoch)


class Worker:
    """A gate without groups of limits, Celery's consumer, a pool that runs nothing by itself, and one request.

    Args:
        run_of: makes the run of a request, as the tasks of an app do.
    """

    def __init__(self, run_of: Any) -> None:
        self.loop = loop = any_of(Loop())
        self.started: list[Any] = []
        others = OtherJobs(None)
        self.slots = slots = any_of(
            SimpleNamespace(gone=False, size=4, in_main_process=False, passed_on=True, others=others)
        )
        slots.discarded = lambda run: run is None
        slots.run = lambda *job: self.started.append(job)
        tasks: Any = SimpleNamespace(run_of=run_of)
        nothing: Any = lambda *_: None  # noqa: E731
        self.gate = Gate(slots, tasks, Settings(""), loop, loop, (), nothing, nothing, Mock())
        self.qos = self.connect()
        self.told = 0
        self.request = request_of(on_failure=self._fail, on_success=nothing, on_timeout=nothing, reject=nothing)
        self.request.acknowledged = False

    def _fail(self, exc_info: object) -> None:
        self.told += 1
        if self.told == 1:
            raise ConnectionError(exc_info)  # of the result backend

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
    worker = Worker(broken)
    worker.gate.disconnected()
    worker.gate.arrive(worker.request)
    qos = worker.connect()
    worker.loop.ring()
    assert qos.value == 4
    assert not worker.told


@pytest.mark.parametrize("connected", [False, True])
def test_unwritable_failure_without_connection_is_left_to_broker(*, connected: bool) -> None:
    """It has run; the broker delivers it again, so nothing is to be written, and no other comes in its place."""
    worker = Worker(plain)
    worker.gate.arrive(worker.request)
    (run,) = worker.gate.running.runs
    worker.gate.disconnected()
    if connected:
        worker.connect()
    worker.gate.running._limited(run, RateLimited())
    assert worker.told == 1
    assert not worker.gate.held.of(*WHY)
    assert not worker.loop.ring()
    assert worker.told == 1
    assert not worker.request.message.acknowledged


def test_permit_to_give_back_has_a_timer_after_a_lost_connection() -> None:
    """Celery empties the hub's timer when the connection is lost."""
    worker = Worker(plain)
    box = SimpleNamespace(urgent=False, lazy=True)
    calls: Any = SimpleNamespace(outbox=box, hungry=False, hint_due=False, lazy_since=None, sifting=Sifting())
    timers = []
    for lost in (False, False, True):
        if lost:
            worker.gate.disconnected()
        calls.lazy_since = None
        assert not worker.gate._admission._is_due(calls, 0)
        timers.append(len(worker.loop.pauses))
    assert timers == [1, 1, 2]


def test_stopped_worker_lets_no_run_enter() -> None:
    """A signal has begun a cold shutdown while those that waited were let in, one by one."""
    worker = Worker(plain)
    worker.slots.gone = True
    worker.gate._admission.enter(Run(worker.request, Content("t"), epoch=0))
    assert not worker.started


def test_a_row_that_comes_while_the_worker_leaves_is_reported() -> None:
    """A task was revoked after all was reported, and the connection had just broken."""
    calls: Any = SimpleNamespace(settled=True, left=True, leave=lambda: None)
    reached: list[bool] = []

    def wait(ready: Any, _: float) -> bool:
        calls.settled = len(reached) < 2
        reached.append(ready())
        return reached[-1]

    loop: Any = SimpleNamespace(post=lambda call, *args: call(*args), wait=wait, stop=lambda _: None)
    gate: Any = SimpleNamespace(groups=[calls], finish=lambda: None, keep_back=lambda: None)
    Stopping(loop, gate, 60).finish()
    assert reached == [True, True, False]
