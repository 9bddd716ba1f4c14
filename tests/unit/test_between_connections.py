"""What comes to the gate while the worker has no connection to its broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kombu.common import QoS

from celery_throttle.core.settings import Settings
from celery_throttle.worker.gate import Gate
from tests.support.timers import Timers


class Loop(Timers):
    """The loop, too."""

    hub: Any = None

    def call(self, function: Any, *args: Any) -> None:
        function(*args)

    def every_turn(self, tick: Any) -> None:
        """Nothing turns here."""


class Request:
    """Of a task that cannot run here; at first nobody can be told, since the result backend is away."""

    id = name = "t"

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


def connect(gate: Gate) -> Any:
    conf: dict[str, object] = {}
    consumer = SimpleNamespace(app=SimpleNamespace(conf=conf), qos=QoS(lambda **_: None, 4))
    queues: Any = SimpleNamespace(names=("celery",))
    requests: Any = None
    gate.connected(consumer, queues, requests)
    return consumer


def test_one_of_a_connection_that_is_gone_is_left_to_the_broker() -> None:
    """Its ETA has come, in Celery's timer thread; else it counts for the next connection when it is held no more."""
    loop: Any = Loop()
    slots: Any = SimpleNamespace(gone=False, size=4, in_main_process=False, discarded=lambda request: False)
    tasks: Any = Tasks()
    gate = Gate(slots, tasks, Settings(""), loop, loop, (), lambda *_: NotImplemented, lambda: None)
    connect(gate)
    gate.disconnected()
    request = Request()
    gate.arrive(request)
    consumer = connect(gate)
    loop.ring()
    assert consumer.qos.value == 4
    assert not request.told
