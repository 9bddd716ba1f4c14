"""The numbered call of a worker: all its requests and reports in one call."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from celery_throttle.core.json_text import quote, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_throttle.core.facts import Facts, Result

__all__ = ["Arrival", "Back", "Delivery", "Ended", "Exchange", "Succession"]


_BEGAN = ',"began":true'


@lru_cache(maxsize=64)
def _written(queues: tuple[str, ...]) -> str:
    return write(queues)


def _attempt(number: int) -> str:
    return f',"attempt":{number}' if number else ""


class Delivery(NamedTuple):
    """One delivery of a message; see `Arrival`."""

    task: str
    attempt: int
    nonce: str


class Arrival(NamedTuple):
    """A task that asks for its permits, holds them, or has to be parked.

    Attributes:
        task: the id of the task.
        needs: the permits that the task takes, as in needs.lua.
        queue: the queue whose workers can start the task.
        attempt: grows with each message of this task id: a retry, or a message of `replace`.
        lock: the request for the identity lock, JSON as in claims.lua; "" if the task has none.
        nonce: identifies this delivery.
        message: the message of a task to park.
        turn: the turn of a task to park among the others, as in fair_queueing.lua.
        wait_ms: how long a task to park may wait, in ms.
        outside: whether the holder is a process outside of tasks.
        age: seconds since a task to park arrived.
        unacked: whether the broker keeps the message of a parked task until ``acked`` reports the acknowledgement.
        code: the code of the task's name, as in task_codes.py; "" where one of the limits gives the name.
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

    @property
    def row(self) -> str:
        """The JSON for the scripts, without the message."""
        more = f',"lock":{self.lock}' if self.lock else ""
        if self.code:
            more += f',"code":"{self.code}"'
        if self.age:
            more += f',"age_ms":{self.age * 1000:.1f}'
        if self.unacked:
            more += ',"unacked":true'
        if self.turn is not None or self.wait_ms is not None or self.outside:
            given = {"turn": self.turn, "wait_ms": self.wait_ms, "outside": self.outside or None}
            more += "," + write({name: value for name, value in given.items() if value is not None})[1:-1]
        return (
            f'{{"task":{quote(self.task)},"nonce":"{self.nonce}","needs":{quote(self.needs)},'
            f'"queue":{quote(self.queue)},"attempt":{self.attempt}{more}}}'
        )


class Ended(NamedTuple):
    """A run that has ended; ``needs``: the permits that the run held, where known."""

    task: str
    nonce: str
    facts: Facts
    attempt: int = 0
    needs: str = ""

    @property
    def row(self) -> str:
        """The JSON for exchange.lua."""
        began, message, result = self.facts
        more = (_BEGAN if began else "") + _attempt(self.attempt)
        return (
            f'{{"task":{quote(self.task)},"nonce":"{self.nonce}","message":"{message.value}",'
            f'"result":"{result.value}"{more}}}'
        )


class Succession(NamedTuple):
    """A run that has ended, and the task that started with its permit in the same worker."""

    task: str
    nonce: str
    result: Result
    to: Arrival
    attempt: int = 0

    @property
    def row(self) -> str:
        """The JSON for exchange.lua."""
        return (
            f'{{"task":{quote(self.task)},"nonce":"{self.nonce}","message":"nobody",'
            f'"result":"{self.result.value}"{_attempt(self.attempt)},"to":{self.to.row}}}'
        )


class Back(NamedTuple):
    """A started task that raised RateLimited: the bucket `about` starts nothing for ``pause`` seconds."""

    arrival: Arrival
    pause: float
    about: str

    @property
    def row(self) -> str:
        """The JSON for exchange.lua, without the message."""
        return f'{self.arrival.row[:-1]},"pause_ms":{round(self.pause * 1000)},"about":{quote(self.about)}}}'


@dataclass
class Exchange:
    """All requests and reports of a worker in one call; see exchange.lua.

    Attributes:
        clock: the time of the call on the worker's clock; 0: not sent.
        errors: how often the worker lost the store, or the store refused a call.
    """

    slots: int = 0
    clock: float = 0.0
    errors: int = 0
    ended: list[Ended] = field(default_factory=list)
    passed: list[Succession] = field(default_factory=list)
    began: list[tuple[str, str]] = field(default_factory=list)
    unacked: list[Delivery] = field(default_factory=list)
    acked: list[Delivery] = field(default_factory=list)
    revoked: list[str] = field(default_factory=list)
    never: list[tuple[str, str, str]] = field(default_factory=list)
    unread: list[tuple[str, str]] = field(default_factory=list)
    asked: list[Arrival] = field(default_factory=list)
    parked: list[Arrival] = field(default_factory=list)
    back: list[Back] = field(default_factory=list)

    def text(self, worker: str, number: int, queues: Sequence[str], birth: str = "") -> str:
        """Return the call as JSON, without the messages."""
        parts = [f'"worker":"{worker}","number":{number},"slots":{self.slots},"queues":{_written(tuple(queues))}']
        if birth:
            parts.append(f'"birth":"{birth}"')
        if self.clock:
            parts.append(f'"clock_ms":{self.clock * 1000:.1f}')
        if self.errors:
            parts.append(f'"errors":{self.errors}')
        objects = ((name, getattr(self, name)) for name in ("ended", "passed", "asked", "parked", "back"))
        parts += [f'"{name}":[{",".join([each.row for each in rows])}]' for name, rows in objects if rows]
        arrays = ((name, getattr(self, name)) for name in ("began", "unacked", "acked", "revoked", "never", "unread"))
        parts += [f'"{name}":{write(rows)}' for name, rows in arrays if rows]
        return "{" + ",".join(parts) + "}"

    def messages(self) -> list[bytes]:
        """Return the messages of the tasks to park, then those of the tasks that go back."""
        return [each.message for each in self.parked] + [each.arrival.message for each in self.back]
