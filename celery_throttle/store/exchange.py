"""The numbered call of a worker: all its requests and reports in one call."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from celery_throttle.core.storable import quoted, written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_throttle.core.facts import Facts

__all__ = ["Arrival", "Delivery", "DeliveryChange", "Exchange"]


@lru_cache(maxsize=64)
def _written(queues: tuple[str, ...]) -> str:
    return written(sorted(queues))


class Delivery(NamedTuple):
    """One delivery of a message; see `Arrival`."""

    task: str
    attempt: int
    nonce: str
    publication: str = ""


class Arrival(NamedTuple):
    """A task that asks for its permits, holds them, has to be parked, or goes back in line.

    Attributes:
        task: the id of the task.
        needs: the permits that the task takes, as in needs.lua.
        queue: the queue whose workers can start the task.
        attempt: grows with each message of this task id: a retry, or a message of `replace`.
        lock: the request for the identity lock, JSON as in claims.lua; "" if the task has none.
        nonce: identifies this delivery.
        message: the message of a task to park, or one that goes back; b"" if the task asks to start.
        turn: the turn of a task to park among the others, as in fair_queueing.lua.
        wait_ms: how long a task to park may wait for its permits, in ms since it arrived.
        outside: whether the holder is a process outside of tasks.
        age: seconds since a task to park, or one that goes back, arrived.
        unacked: whether the broker keeps the message of a parked task until ``acked`` reports the acknowledgement.
        code: the code of the task's name, as in task_codes.py; "" where one of the limits gives the name.
        publication: names the message among those of its task id, and is the same for a retry; "" if unknown.
        pause: of a started task that goes back: for how many seconds nothing starts, and on which buckets, as needs.
        expires_ms: when the message of a task to park, or one that goes back, expires, in ms since it arrived.
    """

    task: str
    needs: str
    queue: str = ""
    attempt: int = 0
    lock: str = ""
    nonce: str = ""
    message: bytes = b""
    turn: tuple[str, str, int] | None = None
    wait_ms: int | None = None
    outside: bool = False
    age: float = 0.0
    unacked: bool = False
    code: str = ""
    pause: tuple[float, str] | None = None
    publication: str = ""
    expires_ms: int | None = None

    @property
    def delivery(self) -> Delivery:
        """This delivery."""
        return Delivery(self.task, self.attempt, self.nonce, self.publication)

    @property
    def row(self) -> str:
        """The JSON for the scripts, without the message."""
        more = f',"lock":{self.lock}' if self.lock else ""
        if self.code:
            more += f',"code":{quoted(self.code)}'
        if self.publication:
            more += f',"publication":{quoted(self.publication)}'
        if self.unacked:
            more += ',"unacked":true'
        if self.message:
            more += self._about_message
        return (
            f'{{"task":{quoted(self.task)},"nonce":{quoted(self.nonce)},"needs":{quoted(self.needs)},'
            f'"queue":{quoted(self.queue)},"attempt":{self.attempt}{more}}}'
        )

    @property
    def _about_message(self) -> str:
        more = f',"message":1,"age_ms":{self.age * 1000:.1f}'
        if self.pause is not None:
            seconds, about = self.pause
            more += f',"pause_ms":{round(seconds * 1000)},"about":{quoted(about)}'
        if self.turn is not None or self.wait_ms is not None or self.outside:
            given = {"turn": self.turn, "wait_ms": self.wait_ms, "outside": self.outside or None}
            more += "," + written({name: value for name, value in given.items() if value is not None})[1:-1]
        if self.expires_ms is not None:
            more += f',"expires_ms":{self.expires_ms}'
        return more


class DeliveryChange(NamedTuple):
    """What became of a delivery since the last call.

    Attributes:
        event: ``began``, ``unacked``, ``acked``, ``ended`` or ``passed``, as in exchange.lua.
        task: the id of the task.
        attempt: the attempt of the delivery.
        nonce: identifies the delivery.
        publication: of the delivery, as in `Arrival`.
        facts: how the run ended, if it did.
        needs: the permits that an ended run held, where known.
        unacked: whether the message of an ended run is being acknowledged, so that ``acked`` follows.
        to: the task that started with the permit of a run that ended, in the same worker.
    """

    event: Literal["began", "unacked", "acked", "ended", "passed"]
    task: str
    attempt: int
    nonce: str
    publication: str = ""
    facts: Facts | None = None
    needs: str = ""
    to: Arrival | None = None
    unacked: bool = False

    @property
    def row(self) -> str:
        """The JSON for exchange.lua."""
        more = ""
        if self.facts is not None:
            began, message, result = self.facts
            more = f',"{message.value}","{result.value}",{"true" if began else "false"}'
            if self.to is not None:
                more += f",{self.to.row}"
            elif self.unacked:
                more += ",true"
        return (
            f'["{self.event}",{quoted(self.task)},{self.attempt},{quoted(self.nonce)},{quoted(self.publication)}{more}]'
        )


@dataclass
class Exchange:
    """All requests and reports of a worker in one call; see exchange.lua.

    Attributes:
        slots: how many parked tasks the worker takes.
        clock: the time of the call on the worker's clock; 0: not sent.
        errors: how often the worker lost the store, or the store refused a call.
        arrived: tasks that ask to start, that are to be parked, or that go back in line, in this order.
        changed: what became of deliveries, in the order in which it happened.
        gone: tasks that will not run: the reason, and its parts as in exchange.lua.
    """

    slots: int = 0
    clock: float = 0.0
    errors: int = 0
    arrived: list[Arrival] = field(default_factory=list)
    changed: list[DeliveryChange] = field(default_factory=list)
    gone: list[tuple[str, ...]] = field(default_factory=list)

    def text(self, worker: str, number: int, queues: Sequence[str], birth: str = "", more: str = "") -> str:
        """Return the call as JSON, without the messages; ``more``: further parts, as JSON."""
        text = f'{{"worker":{quoted(worker)},"number":{number},"slots":{self.slots},"queues":{_written(tuple(queues))}'
        if birth:
            text += f',"birth":{quoted(birth)}'
        text += more
        if self.clock:
            text += f',"clock_ms":{self.clock * 1000:.1f}'
        if self.errors:
            text += f',"errors":{self.errors}'
        if self.arrived:
            text += f',"arrived":[{",".join([each.row for each in self.arrived])}]'
        if self.changed:
            text += f',"changed":[{",".join([each.row for each in self.changed])}]'
        if self.gone:
            text += f',"gone":{written(self.gone)}'
        return text + "}"

    def messages(self) -> list[bytes]:
        """Return the messages of the arrived tasks that have one."""
        return [each.message for each in self.arrived if each.message]
