"""The reply to an exchange: what became of each task, and what starts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from celery_throttle.core.policy import needs_again
from celery_throttle.store.reading import read, text, ticket_time

__all__ = [
    "Answer",
    "Cleared",
    "Grant",
    "LockState",
    "Overtaken",
    "ParkAnswer",
    "Reply",
    "SavedAnswer",
    "Unread",
    "Withdrawn",
    "read_cleared",
    "read_exchanged",
]


class Overtaken(Exception):
    """The store has carried out a call with a higher number, so it did nothing.

    Attributes:
        number: of that call.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"the store has carried out call {number} of this worker")
        self.number = number


class Answer(IntEnum):
    """What became of a task that asked for its permits; more than these: granted, with its fencing token."""

    MUST_PARK = 0
    GRANTED = 1
    KNOWN = 2
    HAS_RUN = 3


class SavedAnswer(IntEnum):
    """What the store has of a task that was parked."""

    LOST = 0
    THERE = 1
    DONE = 2


class ParkAnswer(IntEnum):
    """What became of a task that was to be parked."""

    CROWDED = 0
    PARKED = 1
    HAS_RUN = 3


@dataclass(frozen=True, slots=True)
class Grant:
    """A parked task that starts in the caller's slot: it has its permits, or is only to be told something.

    Attributes:
        task: its id.
        nonce: names this delivery as a holder.
        needs: the permits it takes, as needs.lua says.
        queue: it was parked for.
        attempt: grows with each message of this task id: a retry, or what `replace` sent.
        deliveries: how often it was started before.
        message: as it was parked.
        expired: whether it waited for too long and does not run.
        lock: what it was told of its identity lock, None if it has none.
        dropped: who dropped it, so that it does not run; "" if nobody did.
        waited: seconds since it came to a worker, or went back to the head of its line.
        code: which task it is, as `Arrival` has it.
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


@dataclass(frozen=True, slots=True)
class LockState:
    """What a task was told of its identity lock.

    Attributes:
        verdict: ``run``, or what a worker has to say of it instead, as in claims.lua.
        first: the task that it is a duplicate of, if any.
        fencing_token: of this grant, 0 for a task that does not run.
        spec: as the store keeps it.
        lost: whether the first has succeeded, and its result could not be kept.
    """

    verdict: str
    first: str
    fencing_token: int
    spec: str
    lost: bool = False

    @property
    def starts(self) -> bool:
        """Whether something has to run, the task or what gives it the outcome of its first; else it is only told."""
        return self.verdict in ("run", "conclude")


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to an exchange.

    Attributes:
        asked: one for each task that asked: an `Answer`, or its fencing token.
        parked: one for each that was to be parked: a `ParkAnswer`.
        grants: parked tasks to start.
        unread: parked tasks that the store gave out, and whose records cannot be read here.
        wait: seconds after which to look again, 0 if there is no need.
        more: whether there is more to start than the caller had slots for.
        closed: of the buckets that the call was about, those with a line or without room.
        open: the others of them.
        withdrawn: what was taken out of its line.
        hints: whether the store's user may publish hints.
        reclaimed: the lost holders that were cleared.
    """

    asked: tuple[int, ...]
    parked: tuple[int, ...]
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
        needs: the permits that it held, as the store has them.
        worker: that ran it; "": not known.
        code: what the store keeps of the name of the task.
        late: seconds since the lease ended; None: not known.
    """

    task: str
    needs: str
    worker: str = ""
    code: str = ""
    late: float | None = None


class Unread(NamedTuple):
    """A parked task whose record cannot be read, and why."""

    task: str
    why: str


class Withdrawn(NamedTuple):
    """A task that was taken out of its line."""

    task: str
    message: bytes


def read_exchanged(raw: Any) -> Reply | None:
    """Read the reply of exchange.lua; None if the store has to hear what the limits are first.

    Raises:
        Overtaken: by a later call.
        UnreadableReply: it is none. A record that cannot be read is only its task's affair: see `Reply.unread`.
    """
    if isinstance(raw, list) and raw[:1] == [b"overtaken"]:
        raise Overtaken(read(lambda row: int(row[1]), raw))
    return read(_exchanged, raw)


def _exchanged(raw: Any) -> Reply | None:
    if raw[0] == b"declare":
        return None
    _number, asked, parked, grants, wait_ms, more, closed, opened, withdrawn, hints, reclaimed = raw
    granted, unread = _grants(grants)
    return Reply(
        tuple(map(int, asked)),
        tuple(map(ParkAnswer, parked)),
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
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one record
            unread.append(Unread(text(row[0]), f"{type(error).__name__}: {error}"))
    return tuple(granted), tuple(unread)


def _grant(raw: Any) -> Grant:
    task, packed, message = raw
    record = json.loads(packed)
    needs_again(record["needs"])  # raises what would be raised where it starts
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
    )


def _waited(record: Any) -> float:
    came = ticket_time(record["ticket"])
    return max(0.0, record["since"] / 1000 - came) if came else 0.0


def _lock(plan: Any) -> LockState | None:
    if not plan:
        return None
    spec = json.dumps(plan, separators=(",", ":"))
    return LockState(plan["verdict"], plan["first"], int(plan.get("fence", 0)), spec, bool(plan.get("lost")))
