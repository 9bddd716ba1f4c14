"""Read identity locks, and the answers to claims."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_throttle.core.wording import at, one_line, seconds
from celery_throttle.store.parcel import task_name_in
from celery_throttle.store.reading import readable, text, when

if TYPE_CHECKING:
    from datetime import datetime

__all__ = [
    "CLAIMED",
    "LOST",
    "OURS",
    "REPLACED",
    "TAKEN",
    "Claimed",
    "LockStatus",
    "Locked",
    "lock_from",
    "read_claimed",
    "read_locked",
    "read_locks",
]

#: Answers of claim.lua.
TAKEN, CLAIMED, OURS, REPLACED, LOST = 0, 1, 2, 3, 4


class Claimed(NamedTuple):
    """The answer to a claim: a tuple, because each publish makes one.

    Attributes:
        answer: ``TAKEN``, ``CLAIMED``, ``OURS``, ``REPLACED`` or ``LOST`` (taken, and the result could not be kept).
        other: the task that has the lock, or had it until now; "" if there is none.
        claim: the number of the claim, "0" if nothing was claimed.
    """

    answer: int
    other: str
    claim: str


@dataclass(frozen=True)
class Locked:
    """The state of the identity lock of a call.

    Attributes:
        task_id: the task that has the lock.
        state: ``queued`` (claimed, published, or parked), ``running``, ``done`` or ``failed`` (remembered).
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

    def __str__(self) -> str:
        since = " since" if self.state in ("queued", "running") else ", started"
        following = f", next {self.next_id}" if self.next_id else ""
        return (
            f"{self.task_id} is {self.state}{since} {at(self.since)}, the lock ends in {seconds(self.expires_in)}, "
            f"fencing token {self.fencing_token}{following}"
        )


@dataclass(frozen=True)
class LockStatus:
    """An identity lock that a task has.

    Attributes:
        identity: the identity of the call: a hash of the task's name and arguments.
        task_id: the id of the task that has the lock.
        task_name: the name of the task; None if the store has no message of the task.
        state: ``queued`` (claimed, published, or parked), ``running``, ``done`` or ``failed`` (remembered).
        since: when it came into that state, but for ``done`` and ``failed``: when it started; by the store's clock.
        expires_in: seconds until the lock ends by itself; a running task renews it.
        fencing_token: of the last grant, 0 before the first.
        worker: the worker that runs the task, as in `Holder`; None if the task does not run.
        next_id: the task that runs next (``on_conflict="keep_last"``), None if there is none.
    """

    identity: str
    task_id: str
    task_name: str | None
    state: str
    since: datetime
    expires_in: float
    fencing_token: int
    worker: str | None
    next_id: str | None

    def __str__(self) -> str:
        where = f" on worker {self.worker}" if self.worker else ""
        following = f", next {one_line(self.next_id)}" if self.next_id else ""
        task = f"{one_line(self.task_name or 'Task')}[{one_line(self.task_id)}]"
        return (
            f"{task} has lock {self.identity}, {self.state}{where} since {at(self.since)}, it ends in "
            f"{seconds(self.expires_in)}{following}"
        )


def read_claimed(raw: Any) -> Claimed:
    """Read the reply of claim.lua: a text of answer, claim and other task, with spaces between."""
    answer, claim, other = raw.decode().split(" ", 2)  # an id may have spaces
    return Claimed(int(answer), other, claim)


def read_locked(raw: Any) -> Locked | None:
    """Read the reply of locked.lua."""
    if not raw:
        return None
    lock, left = json.loads(raw[0]), raw[1]
    token = int(lock["fence"])
    return Locked(lock["task"], lock["state"], when(lock["since"]), max(left, 0) / 1000, token, lock.get("next"))


def read_locks(raw: Any) -> tuple[str, list[LockStatus]]:
    """Read the reply of locks.lua: the cursor of the next page, and a page."""
    after, rows = raw
    return text(after), list(readable(lambda row: _lock_status(*row), rows))


def _lock_status(identity: bytes, packed: bytes, left: int, head: bytes) -> LockStatus:
    lock = json.loads(packed)
    return LockStatus(
        text(identity),
        lock["task"],
        task_name_in(head),
        lock["state"],
        when(lock["since"]),
        left / 1000,
        int(lock["fence"]),
        lock["nonce"].partition(":")[0] if lock["state"] == "running" and "nonce" in lock else None,
        lock.get("next"),
    )


def lock_from(raw: bytes) -> tuple[str, str, datetime] | None:
    """Return (state, task, time of the state); None if the lock is free."""
    if not raw:
        return None
    lock = json.loads(raw)
    return lock["state"], lock["task"], when(lock["since"])
