"""A worker as the store sees it: calls to the scripts, with nonces of its own, and no pool behind them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple, cast

from celery_throttle.core.keys import Keys
from celery_throttle.store import replies
from celery_throttle.store.replies import Answer
from celery_throttle.store.scripts import Store, execute

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis import Redis

    from celery_throttle.core.limits import Limit
    from celery_throttle.store.replies import Grant, Reply, Withdrawn

KEYS = Keys("test")
LEASE = 600.0
GRANTED = frozenset({Answer.GRANTED, Answer.GRANTED_LAST})


class Held(NamedTuple):
    """What a worker has to know to give a permit back or to keep it."""

    task: str
    nonce: str
    limit: Limit
    attempt: int = 0

    def returned(self, outcome: str = "done") -> tuple[str, str, str]:
        """The row that gives it back."""
        return self.task, self.nonce, outcome


class Parcel(NamedTuple):
    """A task to be set aside."""

    task: str
    limit: Limit
    queue: str
    message: bytes
    attempt: int = 0


class Caller:
    """One worker: its id begins every nonce, and it can start tasks of its queues."""

    def __init__(self, client: Redis, name: str, *queues: str, lease: float = LEASE, prefix: str = KEYS.prefix) -> None:
        self.client, self.name = client, name
        self.store = Store(Keys(prefix), lease, queues)
        self._numbers = itertools.count(1)

    @property
    def queues(self) -> tuple[str, ...]:
        return self.store.queues

    def nonce(self) -> str:
        return f"{self.name}:{next(self._numbers):x}"

    def exchange(
        self,
        slots: int = 0,
        *,
        released: Iterable[tuple[str, str, str]] = (),
        started: Iterable[tuple[str, str]] = (),
        asked: Iterable[Held] = (),
    ) -> Reply:
        rows = [
            (held.task, held.nonce, held.limit.name, str(held.limit.permits), held.attempt, "", "") for held in asked
        ]
        return replies.reply(execute(self.client, self.store.exchange(self.nonce(), slots, released, started, rows)))

    def ask(self, task: str, limit: Limit, *, attempt: int = 0) -> tuple[Answer, Held]:
        """Ask for one permit, with no other slot: the answer, and the holder if it is granted."""
        held = Held(task, self.nonce(), limit, attempt)
        return Answer(self.exchange(asked=[held]).answers[0]), held

    def take(self, task: str, limit: Limit, *, attempt: int = 0) -> Held:
        """Ask for a permit that must be free."""
        answer, held = self.ask(task, limit, attempt=attempt)
        assert answer in GRANTED
        return held

    def release(self, held: Held | Grant, outcome: str = "done", *, slots: int = 0) -> Reply:
        task = held.task if isinstance(held, Held) else held.task_id
        return self.exchange(slots, released=[(task, held.nonce, outcome)])

    def park(self, *parcels: Parcel, slots: int = 0, number: int | None = None) -> Reply:
        """Set tasks aside; a number given twice is the same call again."""
        rows = [(p.task, p.limit.name, str(p.limit.permits), p.attempt, p.queue, p.message, "", "") for p in parcels]
        number = next(self._numbers) if number is None else number
        return replies.reply(execute(self.client, self.store.park(self.nonce(), slots, self.name, number, rows)))

    def put(self, task: str, limit: Limit, *, queue: str | None = None, attempt: int = 0, slots: int = 0) -> Reply:
        """Set one task aside, from the first queue of this worker; its message is its id and attempt."""
        message = message_of(task, attempt)
        return self.park(Parcel(task, limit, queue or self.queues[0], message, attempt), slots=slots)

    def look(self, slots: int = 1) -> Reply:
        return replies.reply(execute(self.client, self.store.look(self.nonce(), slots)))

    def renew(self, *held: Held) -> list[int]:
        rows = [(h.task, h.nonce, h.limit.name, str(h.limit.permits), h.attempt, "", "") for h in held]
        return cast("list[int]", execute(self.client, self.store.renew(rows)))

    def reap(self, most: int = 100) -> list[tuple[str, str]]:
        """Clear expired holders: (task id, limit) each."""
        cleared = cast("list[tuple[bytes, bytes]]", execute(self.client, self.store.reap(most)))
        return [(task.decode(), limit.decode()) for task, limit in cleared]

    def declare(self, *limits: Limit, known: str = "") -> str:
        """Say how many permits limits have, as a worker does that starts (or that knows of this birth of the store)."""
        rows = [(limit.name, str(limit.permits)) for limit in limits]
        return cast("list[bytes]", execute(self.client, self.store.declare(known, rows)))[0].decode()

    def withdraw(self, *tasks: str) -> tuple[Withdrawn, ...]:
        return replies.withdrawn(execute(self.client, self.store.withdraw(tasks)))

    def mine(self) -> tuple[Grant, ...]:
        return replies.grants(execute(self.client, self.store.mine(self.name)))

    def leave(self) -> None:
        execute(self.client, self.store.leave(self.name))


def message_of(task: str, attempt: int = 0) -> bytes:
    """The message that `Caller.put` parks for a task."""
    return f"{task}#{attempt}".encode()
