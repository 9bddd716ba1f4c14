"""Read the reply to an exchange: the outcome for each task, and the tasks to start."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from celery_throttle.core.policy import needs_again
from celery_throttle.store.exchange import Delivery
from celery_throttle.store.reading import read, text, ticket_time

__all__ = [
    "Answer",
    "Cleared",
    "Grant",
    "LockState",
    "Overtaken",
    "Reply",
    "SavedAnswer",
    "Unread",
    "Withdrawn",
    "read_cleared",
    "read_exchanged",
]


class Overtaken(Exception):
    """The store ignored a call because it has carried out one with a higher ``number``."""

    def __init__(self, number: int) -> None:
        super().__init__(f"the store has carried out call {number} of this worker")
        self.number = number


class Answer(IntEnum):
    """The answer to a task that arrived; a higher number: it starts, with this fencing token."""

    MUST_PARK = 0
    GRANTED = 1
    PARKED = 2  #: now, or before
    HAS_RUN = 3
    CROWDED = 4  #: not parked, because its line is full
    SENT_BACK = 5
    IS_COPY = 6  #: of a message in line
    ID_IN_USE = 7  #: not parked, because another publication of its task id goes first


class SavedAnswer(IntEnum):
    """Whether the store has a task that was parked."""

    LOST = 0
    THERE = 1
    DONE = 2


@dataclass(frozen=True, slots=True)
class Grant:
    """A parked task for a slot of the caller: a task that has its permits, or one that ends without running.

    Attributes:
        task: the id of the task.
        nonce: identifies this delivery as a holder.
        needs: the permits that the task takes, as in needs.lua.
        queue: the queue that the task was parked for.
        attempt: grows with each message of this task id: a retry, or a message of `replace`.
        deliveries: the number of earlier starts.
        message: the message as it was parked.
        expired: whether the task waited for too long and does not run.
        lock: the state of the identity lock for this task, None if the task has none.
        dropped: the operator that dropped the task, so that it does not run; "" if the task was not dropped.
        waited: seconds since the task came to a worker, or went back to the head of its line.
        code: the code of the task's name, as in `Arrival`.
        publication: of the message, as in `Arrival`.
    """

    task: str
    nonce: str
    needs: str
    queue: str
    attempt: int
    deliveries: int
    message: bytes
    expired: bool
    lock: LockState | None = None
    dropped: str = ""
    waited: float = 0.0
    code: str = ""
    publication: str = ""

    @property
    def delivery(self) -> Delivery:
        """This delivery, as the store names it."""
        return Delivery(self.task, self.attempt, self.nonce, self.publication)


@dataclass(frozen=True, slots=True)
class LockState:
    """The verdict of the store on a task with an identity lock.

    Attributes:
        verdict: ``run``, or how the task ends instead, as in claims.lua.
        first: the id of the first task, if this one is a duplicate.
        fencing_token: the token of this grant, 0 for a task that does not run.
        spec: the lock request as the store keeps it, JSON.
        lost: whether the first task has succeeded, and its result could not be kept.
    """

    verdict: str
    first: str
    fencing_token: int
    spec: str
    lost: bool = False

    @property
    def starts(self) -> bool:
        """Whether a slot is needed: the task runs, or takes over the outcome of its first; else the task only ends."""
        return self.verdict in ("run", "conclude")


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to an exchange.

    Attributes:
        arrived: for each task that arrived: an `Answer`, or its fencing token.
        grants: the parked tasks to start.
        unread: the parked tasks that the store granted, and whose records this worker cannot read.
        wait: seconds until the next call is due, 0 if none is.
        more: whether more tasks could start than the caller had slots for.
        closed: the buckets of this call that have a line or no room.
        open: the other buckets of this call.
        withdrawn: the tasks that were taken out of their lines.
        hints: whether the store's user may publish hints.
        reclaimed: the lost holders that were cleared.
    """

    arrived: tuple[int, ...]
    grants: tuple[Grant, ...]
    unread: tuple[Unread, ...]
    wait: float
    more: bool
    closed: tuple[str, ...]
    open: tuple[str, ...]
    withdrawn: tuple[Withdrawn, ...]
    hints: bool
    reclaimed: tuple[Cleared, ...]


class Cleared(NamedTuple):
    """A holder whose lease had ended, and whose permits are free again.

    Attributes:
        task: the id of the task.
        needs: the permits that the task held, as the store has them.
        worker: the worker that ran the task; "": not known.
        code: the code of the task's name, as the store has it.
        late: seconds since the lease ended; None: not known.
    """

    task: str
    needs: str
    worker: str = ""
    code: str = ""
    late: float | None = None


class Unread(NamedTuple):
    """A parked task with an unreadable record, and the error."""

    task: str
    why: str


class Withdrawn(NamedTuple):
    """A task that was taken out of its line."""

    task: str
    message: bytes


def read_exchanged(raw: Any) -> Reply | None:
    """Read the reply of exchange.lua; None if the worker has to declare its limits first.

    Raises:
        Overtaken: the store has carried out a later call.
        UnreadableReply: the reply is unreadable. An unreadable record raises nothing: see `Reply.unread`.
    """
    if isinstance(raw, list) and raw[:1] == [b"overtaken"]:
        raise Overtaken(read(lambda row: int(row[1]), raw))
    return read(_exchanged, raw)


def _exchanged(raw: Any) -> Reply | None:
    if raw[0] == b"declare":
        return None
    _number, arrived, grants, wait_ms, more, closed, opened, withdrawn, hints, reclaimed = raw
    granted, unread = _grants(grants)
    return Reply(
        tuple(map(int, arrived)),
        granted,
        unread,
        wait_ms / 1000,
        bool(more),
        tuple(map(text, closed)),
        tuple(map(text, opened)),
        tuple(Withdrawn(text(task), message) for task, message in withdrawn),
        bool(hints),
        tuple(read_cleared(*row) for row in reclaimed),
    )


def read_cleared(
    task: bytes, needs: bytes, nonce: bytes = b"", code: bytes = b"", late_ms: int | None = None
) -> Cleared:
    """Read a row of a holder that was cleared."""
    late = None if late_ms is None else late_ms / 1000
    return Cleared(text(task), text(needs), text(nonce).partition(":")[0], text(code), late)


def _grants(rows: Any) -> tuple[tuple[Grant, ...], tuple[Unread, ...]]:
    granted, unread = [], []
    for row in rows:
        try:
            granted.append(_grant(row))
        except Exception as error:  # noqa: BLE001 - a bad record must not affect the other tasks
            unread.append(Unread(text(row[0]), f"{type(error).__name__}: {error}"))
    return tuple(granted), tuple(unread)


def _grant(raw: Any) -> Grant:
    task, packed, message = raw
    record = json.loads(packed)
    needs_again(record["needs"])  # unreadable needs must raise here, not when the task starts
    return Grant(
        task.decode(),
        str(record["nonce"]),
        record["needs"],
        str(record["queue"]),
        record.get("attempt", 0),
        record.get("deliveries", 0),
        message,
        record.get("expired", False),
        _lock(record.get("lock")),
        record.get("dropped", ""),
        _waited(record),
        record.get("code", ""),
        record.get("publication", ""),
    )


def _waited(record: Any) -> float:
    came = ticket_time(record["ticket"])
    return max(0.0, record["since"] / 1000 - came) if came else 0.0


def _lock(plan: Any) -> LockState | None:
    if not plan:
        return None
    spec = json.dumps(plan, separators=(",", ":"))
    return LockState(plan["verdict"], plan["first"], int(plan.get("fence", 0)), spec, bool(plan.get("lost")))
