"""Calls to the scripts as a worker makes them, without a worker."""

from __future__ import annotations

import itertools
import uuid
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

from benchmarks.site import BenchmarkError
from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.store.calls import Store
from celery_throttle.store.exchange import Arrival, DeliveryChange, Exchange
from celery_throttle.store.exchange_reply import Answer, read_exchanged
from celery_throttle.store.scripts import execute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis import Redis

    from celery_throttle.core.keys import Keys
    from celery_throttle.store.exchange_reply import Grant, Reply
    from celery_throttle.store.scripts import Call

__all__ = ["StandIn", "ended"]

_HOUR = 3600.0
_AT_ONCE = 500
_DONE = Facts(began=True, message=Message.NOBODY, result=Result.SUCCESS)


def ended(task: str, nonce: str, needs: str = "") -> DeliveryChange:
    """Return the row about a run that has succeeded."""
    return DeliveryChange("ended", task, 0, nonce, facts=_DONE, needs=needs)


def _rows(limits: dict[str, int | str]) -> list[tuple[str, str]]:
    return [(name, str(permits)) for name, permits in limits.items()]


class StandIn:
    """One worker as the store sees it, on one prefix.

    Args:
        client: the client of the store.
        keys: the keys of the prefix.
        queues: the queues whose tasks it starts; it parks tasks of the first one.
        lease: the lease of its permits.
    """

    def __init__(self, client: Redis, keys: Keys, *queues: str, lease: float = _HOUR) -> None:
        self.client, self.keys, self.queues = client, keys, queues
        self.queue = queues[0]
        self.store = Store(keys, lease)
        self.name = uuid.uuid4().hex[:8]
        self._numbers = itertools.count(1)

    def call(self, call: Call) -> Any:
        return execute(self.client, call)

    def declare(self, **limits: int | str) -> None:
        """Declare limits with their permits, unless the store has them."""
        for page in self.store.declarations("", _rows(limits), keeps=True):
            self.call(page)

    def declare_again(self, **limits: int | str) -> None:
        """Declare limits with their permits, as a worker does at its start."""
        for page in self.store.declarations("", _rows(limits)):
            self.call(page)

    def exchange(self, rows: Exchange) -> Call:
        """Return the next numbered call, which the store carries out once."""
        return self.store.exchange(self.name, next(self._numbers), self.queues, rows)

    def send(self, rows: Exchange) -> Reply:
        reply = read_exchanged(self.call(self.exchange(rows)))
        if reply is None:
            raise BenchmarkError("the store has no limits yet")
        return reply

    def asking(self, tasks: Sequence[str], bucket: str) -> Exchange:
        return Exchange(
            arrived=[Arrival(task, f"1:{bucket}", self.queue, nonce=f"{self.name}:{task}") for task in tasks]
        )

    def releasing(self, tasks: Sequence[str], *, slots: int = 0) -> Exchange:
        """Return the rows that release the permits of `asking`."""
        return Exchange(slots, changed=[ended(task, f"{self.name}:{task}") for task in tasks])

    def hand_over(self, holder: Grant) -> Exchange:
        """Return the rows that release the permit of a resumed task, and take the next parked one."""
        return Exchange(1, changed=[ended(holder.task, holder.nonce)])

    def hold(self, count: int, bucket: str) -> list[str]:
        """Take ``count`` permits; return the ids of their tasks."""
        tasks = [str(uuid.uuid4()) for _ in range(count)]
        for first in range(0, count, _AT_ONCE):
            some = tasks[first : first + _AT_ONCE]
            if set(self.send(self.asking(some, bucket)).arrived) != {Answer.GRANTED}:
                raise BenchmarkError(f"no permit of {bucket}")
        return tasks

    def park(self, count: int, bucket: str, messages: Sequence[bytes]) -> None:
        """Park ``count`` tasks, with these messages in turn."""
        tasks = ((str(uuid.uuid4()), message) for _, message in zip(range(count), cycle(messages), strict=False))
        while some := list(islice(tasks, _AT_ONCE)):
            rows = [Arrival(task, f"1:{bucket}", self.queue, message=message) for task, message in some]
            reply = self.send(Exchange(arrived=rows))
            if set(reply.arrived) != {Answer.PARKED} or reply.grants:
                raise BenchmarkError(f"parking failed: {reply}")
