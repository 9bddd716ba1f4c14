"""What the scripts answer, as values with names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from celery_throttle.core.policy import needs_again
from celery_throttle.core.wording import at, seconds
from celery_throttle.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

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
    "Overtaken",
    "ParkAnswer",
    "Reply",
    "SavedAnswer",
    "Unread",
    "UnreadableReply",
    "Withdrawn",
    "claimed",
    "exchanged",
    "locked",
    "read",
]

T = TypeVar("T")


#: Tickets in a second, and how far before all others one is that goes back to the head: records.lua, facts.lua.
_TICKETS, _BEFORE_ALL = 10_000, 10**14


class UnreadableReply(StoreUnavailable):
    """The store has answered, and the answer cannot be read: as if it had been lost on the way."""


class Overtaken(Exception):
    """The store has carried out a call with a higher number, so it did nothing.

    Attributes:
        number: of that call.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"the store has carried out call {number} of this worker")
        self.number = number


def read(reader: Callable[[Any], T], raw: Any) -> T:
    """Return what a reader makes of a reply.

    Raises:
        UnreadableReply: it can make nothing of it.
    """
    try:
        return reader(raw)
    except Exception as error:
        raise UnreadableReply(f"a reply of the store cannot be read: {type(error).__name__}: {error}") from error


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


#: Answers of claim.lua.
TAKEN, CLAIMED, OURS, REPLACED, LOST = 0, 1, 2, 3, 4


class Claimed(NamedTuple):
    """What became of a claim. A tuple, since every publish makes one.

    Attributes:
        answer: ``TAKEN``, ``CLAIMED``, ``OURS``, ``REPLACED`` or ``LOST``: taken, and its result could not be kept.
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

    def __str__(self) -> str:
        since = " since" if self.state in ("queued", "running") else ", started"
        following = f", next {self.next_id}" if self.next_id else ""
        return (
            f"{self.task_id} is {self.state}{since} {at(self.since)}, the lock ends in {seconds(self.expires_in)}, "
            f"fencing token {self.fencing_token}{following}"
        )


def locked(raw: Any) -> Locked | None:
    """Read the reply of locked.lua."""
    if not raw:
        return None
    lock, left = json.loads(raw[0]), raw[1]
    when = datetime.fromtimestamp(lock["since"] / 1000, timezone.utc)
    token = int(lock["fence"])
    return Locked(lock["task"], lock["state"], when, max(left, 0) / 1000, token, lock.get("next"))


def exchanged(raw: Any) -> Reply | None:
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
        tuple(map(_text, closed)),
        tuple(map(_text, opened)),
        tuple(Withdrawn(_text(task), message) for task, message in withdrawn),
        bool(hints),
        tuple(cleared(*row) for row in reclaimed),
    )


def cleared(task: bytes, needs: bytes, nonce: bytes = b"", code: bytes = b"", late_ms: int | None = None) -> Cleared:
    """Read a row of a holder that was cleared."""
    late = None if late_ms is None else late_ms / 1000
    return Cleared(_text(task), _text(needs), _text(nonce).partition(":")[0], _text(code), late)


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")  # a name that is none is nothing to stop for


def _grants(rows: Any) -> tuple[tuple[Grant, ...], tuple[Unread, ...]]:
    granted, unread = [], []
    for row in rows:
        try:
            granted.append(_grant(row))
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one record
            unread.append(Unread(_text(row[0]), f"{type(error).__name__}: {error}"))
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
    ticket = record["ticket"]
    if ticket < 0:
        ticket += _BEFORE_ALL
    return max(0.0, record["since"] / 1000 - ticket / _TICKETS) if ticket else 0.0


def _lock(plan: Any) -> LockState | None:
    if not plan:
        return None
    spec = json.dumps(plan, separators=(",", ":"))
    return LockState(plan["verdict"], plan["first"], int(plan.get("fence", 0)), spec, bool(plan.get("lost")))
