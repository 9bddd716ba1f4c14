"""What the scripts answer, as values with names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import IntEnum
from typing import Any, NamedTuple

__all__ = [
    "CLAIMED",
    "OURS",
    "REPLACED",
    "TAKEN",
    "Answer",
    "Claimed",
    "Grant",
    "LockState",
    "Locked",
    "Reply",
    "Withdrawn",
    "claimed",
    "grants",
    "locked",
    "reply",
    "withdrawn",
]


class Answer(IntEnum):
    """What became of one permit asked for."""

    MUST_PARK = 0
    GRANTED = 1
    ALREADY_PARKED = 2
    GRANTED_LAST = 3


@dataclass(frozen=True)
class Grant:
    """A parked task that has its permit now and starts in the caller's slot."""

    task_id: str
    nonce: str
    limit: str
    attempt: int
    queue: str
    deliveries: int
    message: bytes
    lock: LockState | None = None
    more: str = ""

    @property
    def expired(self) -> bool:
        """Whether it waited for too long and does not run."""
        return '"x":' in self.more


@dataclass(frozen=True)
class LockState:
    """What a task was told of its identity lock.

    Attributes:
        verdict: ``run``, or what a worker has to say of it instead, as in locks.lua.
        first: the task that it is a duplicate of, if any.
        fencing_token: of this grant, 0 for a task that does not run.
        spec: as the store keeps it.
    """

    verdict: str
    first: str
    fencing_token: int
    spec: str

    @property
    def starts(self) -> bool:
        """Whether something has to run, the task or what gives it the outcome of its first; else it is only told."""
        return self.verdict in ("run", "conclude")


@dataclass(frozen=True)
class Reply:
    """The answer to an exchange, a park or a look.

    Attributes:
        answers: one for each permit asked for, an `Answer` or the fencing token that came with it; for a park, whether
            the call was carried out now.
        grants: parked tasks to start.
        wait: seconds after which to look again, 0 if there is no need.
        more: whether there is more to start than the caller had slots for.
        emptied: limits with a free permit and nobody in line whom the caller could start.
        refused: of a park: which tasks were not set aside, because as many wait as may.
    """

    answers: tuple[int, ...]
    grants: tuple[Grant, ...]
    wait: float
    more: bool
    emptied: tuple[str, ...]
    refused: tuple[int, ...] = ()


@dataclass(frozen=True)
class Withdrawn:
    """A task that was taken out of its line."""

    task_id: str
    limit: str
    queue: str
    message: bytes


#: Answers of claim.lua.
TAKEN, CLAIMED, OURS, REPLACED = 0, 1, 2, 3


class Claimed(NamedTuple):
    """What became of a claim. A tuple, since every publish makes one.

    Attributes:
        answer: ``TAKEN``, ``CLAIMED``, ``OURS`` or ``REPLACED``.
        other: the task that has the lock, or had it until now; empty if there is none.
        claim: the number of the claim, "0" if nothing was claimed.
    """

    answer: int
    other: str
    claim: str


def claimed(raw: Any) -> Claimed:
    """Read the reply of claim.lua: answer, claim and other task, one text with spaces between."""
    answer, claim, other = raw.decode().split(" ", 2)  # an id may have spaces
    return Claimed(int(answer), other, claim)


_STATES = {b"Q": "queued", b"R": "running", b"D": "done", b"F": "failed"}


@dataclass(frozen=True)
class Locked:
    """Who has the identity lock of a task's arguments.

    Attributes:
        task_id: the task that has it.
        state: ``queued`` (published, or parked), ``running``, ``done`` or ``failed`` (remembered).
        since: when it came into that state, but for ``done`` and ``failed``: when it started; by the store's clock.
        expires_in: seconds until the lock ends by itself; a running task renews it.
        fencing_token: of the last grant, 0 before the first.
        next_id: the task that runs next (``on_conflict="keep_last"``), None if there is none.
    """

    task_id: str
    state: str
    since: datetime
    expires_in: float
    fencing_token: int
    next_id: str | None


def locked(raw: Any) -> Locked | None:
    """Read the reply of locked.lua."""
    if not raw:
        return None
    state, task, fence, since, left, following = raw
    when = datetime.fromtimestamp(since / 1000, timezone.utc)
    return Locked(task.decode(), _STATES[state], when, max(left, 0) / 1000, int(fence), following.decode() or None)


def reply(raw: Any) -> Reply:
    """Read the reply of exchange.lua, park.lua or look.lua."""
    answers, granted, wait_ms, more, emptied, *refused = raw
    return Reply(
        tuple(map(int, answers)) if isinstance(answers, list) else (answers,),
        grants(granted) if granted else (),
        wait_ms / 1000,
        bool(more),
        tuple(limit.decode() for limit in emptied),
        tuple(each - 1 for each in refused[0]) if refused else (),
    )


def grants(raw: Any) -> tuple[Grant, ...]:
    """Read a list of grants."""
    return tuple(
        Grant(
            task.decode(),
            nonce.decode(),
            limit.decode(),
            attempt,
            queue.decode(),
            deliveries,
            message,
            _lock(lock),
            needs.decode(),
        )
        for task, nonce, limit, attempt, _ticket, queue, deliveries, message, lock, needs in raw
    )


def _lock(raw: bytes) -> LockState | None:
    if not raw:
        return None
    _identity, _until, _remember, _ttl, _conflict, _claim, verdict, first, fence, *_ = json.loads(raw)
    return LockState(verdict, first, int(fence), raw.decode())


def withdrawn(raw: Any) -> tuple[Withdrawn, ...]:
    """Read the reply of withdraw.lua."""
    return tuple(
        Withdrawn(task.decode(), limit.decode(), queue.decode(), message) for task, limit, queue, message in raw
    )
