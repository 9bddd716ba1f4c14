"""What the scripts should do, in plain Python: no keys, no indexes, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from celery_throttle.store.replies import Answer
from tests.store.peek import Record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from celery_throttle.core.limits import Limit
    from celery_throttle.store.replies import Grant
    from tests.store.caller import Held, Parcel
    from tests.store.peek import Snapshot

Outcome = Literal["done", "again", "requeue", "return", "lost"]


@dataclass
class Entry:
    """One delivery of a task: held (H), parked (P) or the twin of one of these (T)."""

    state: str
    limit: str
    attempt: int
    ticket: str = ""
    queue: str = ""
    deliveries: int = 0
    message: bytes | None = None
    nonce: str = ""
    expired: bool = False
    twin: Entry | None = None

    @property
    def record(self) -> Record:
        return Record(self.state, self.nonce, self.limit, self.attempt, self.ticket, self.queue, self.deliveries)


def _entry(record: Record, message: bytes | None) -> Entry:
    state, nonce, limit, attempt, ticket, queue, deliveries, *_ = record
    return Entry(state, limit, attempt, ticket, queue, deliveries, message, nonce)


@dataclass(frozen=True)
class Turn:
    """Whose turn it is: a task that may start, or a queue that others have to wait for, or nobody's."""

    task: str | None = None
    wait: bool = False


@dataclass
class Model:
    """The store, by its rules."""

    permits: dict[str, int] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)
    #: queues that had their turn on a limit and did not take it
    passed: set[tuple[str, str]] = field(default_factory=set)
    calls: dict[str, int] = field(default_factory=dict)
    ticket: int = 0
    #: when the store's data began, as it says
    birth: str = ""
    #: whether holders may still have to put themselves back, so that nothing is granted
    settling: bool = False

    def declare(self, known: str, birth: str, limits: Iterable[Limit]) -> None:
        if not self.birth:
            self.birth, self.settling = birth, bool(known)
        assert birth == self.birth
        if known != birth:
            self.permits.update((limit.name, limit.permits or 0) for limit in limits)

    def holders(self, limit: str) -> int:
        return sum(entry.state == "H" and entry.limit == limit for entry in self.entries.values())

    def free(self, limit: str) -> int:
        return self.permits.get(limit, 0) - self.holders(limit)

    def line(self, limit: str) -> list[str]:
        tasks = [task for task, entry in self.entries.items() if entry.state == "P" and entry.limit == limit]
        return sorted(tasks, key=lambda task: self.entries[task].ticket)

    def live(self) -> list[str]:
        """Holders whose lease has not ended."""
        return sorted(task for task, entry in self.entries.items() if entry.state == "H" and not entry.expired)

    def expired(self) -> list[str]:
        return sorted(task for task, entry in self.entries.items() if entry.expired)

    def turn(self, limit: str, queues: Collection[str]) -> Turn:
        """Whose turn it is, for a caller that can start tasks of these queues."""
        if self.settling:
            return Turn(wait=True)
        for task in self.line(limit):
            queue = self.entries[task].queue
            if queue in queues:
                return Turn(task)
            if (limit, queue) not in self.passed:
                return Turn(wait=True)
        return Turn()

    def admit(self, held: Held, queues: Collection[str]) -> Answer:
        entry = self.entries.get(held.task)
        if entry and entry.state == "H":
            return Answer.GRANTED if entry.nonce == held.nonce else Answer.MUST_PARK
        if entry:
            return Answer.MUST_PARK if held.attempt > entry.attempt else Answer.ALREADY_PARKED
        limit = held.limit.name
        self.permits.setdefault(limit, held.limit.permits or 0)
        free = self.free(limit)
        if free <= 0 or self.turn(limit, queues) != Turn():
            return Answer.MUST_PARK
        self.entries[held.task] = Entry("H", limit, held.attempt, nonce=held.nonce)
        return Answer.GRANTED_LAST if free == 1 else Answer.GRANTED

    def park(self, parcel: Parcel) -> bool:
        """Set aside; False if it was needless, because this message or a newer one waits already."""
        self.permits.setdefault(parcel.limit.name, parcel.limit.permits or 0)
        entry = self.entries.get(parcel.task)
        if entry is None:
            self.entries[parcel.task] = self._waiting("P", parcel, self._next_ticket())
        elif entry.state == "P":
            if parcel.attempt <= entry.attempt:
                return False
            entry.attempt, entry.message = parcel.attempt, parcel.message
        else:
            twin = entry.twin
            if twin and parcel.attempt <= twin.attempt:
                return False
            entry.twin = self._waiting("T", parcel, twin.ticket if twin else self._next_ticket())
        return True

    def release(self, task: str, nonce: str, outcome: Outcome) -> Entry | None:
        """Give back a permit; the entry as it was, or None if nobody held it by that nonce."""
        entry = self.entries.get(task)
        if not entry or entry.state != "H" or entry.nonce != nonce:
            return None
        before = replace(entry)
        if outcome in {"requeue", "return", "lost"} and entry.message is not None:
            entry.state, entry.nonce, entry.expired = "P", "", False
            entry.deliveries += outcome != "return"
            if outcome == "requeue":
                entry.ticket = self._next_ticket()
            return before
        del self.entries[task]
        if entry.twin and not (outcome == "done" and entry.twin.attempt <= entry.attempt):
            self.entries[task] = replace(entry.twin, state="P")
        return before

    def reap(self, most: int) -> list[tuple[str, str]]:
        cleared = [(task, self.entries[task].limit) for task in self.expired()[:most]]
        for task, _ in cleared:
            self.release(task, self.entries[task].nonce, "lost")
        return cleared

    def resume(self, grant: Grant, queues: Collection[str]) -> None:
        """A parked task was started: it must have been its turn, with a free permit."""
        assert self.free(grant.limit) > 0, f"{grant.task_id} started without a free permit"
        assert self.turn(grant.limit, queues) == Turn(grant.task_id), f"it was not the turn of {grant.task_id}"
        entry = self.entries[grant.task_id]
        told = (grant.attempt, grant.queue, grant.deliveries, grant.message)
        assert told == (entry.attempt, entry.queue, entry.deliveries, entry.message)
        self.leave_line(entry)
        entry.state, entry.nonce = "H", grant.nonce

    def leave_line(self, entry: Entry) -> None:
        """Whoever takes a task of a passed-over queue shows that somebody is there."""
        self.passed.discard((entry.limit, entry.queue))

    def renew(self, held: Held) -> int | None:
        """The answer, or None where it is a matter of choice: a message of the same task waits by now."""
        entry = self.entries.get(held.task)
        if entry and entry.state == "H":
            if entry.nonce != held.nonce:
                return 0
            entry.expired = False
            return 1
        limit = held.limit.name
        self.permits.setdefault(limit, held.limit.permits or 0)
        if self.free(limit) <= 0:
            return 0
        if entry:
            return None
        self.entries[held.task] = Entry("H", limit, held.attempt, nonce=held.nonce)
        return 2

    def adopt(self, task: str, store: Snapshot) -> None:
        """Take over what the store has made of a task."""
        old = self.entries.pop(task)
        if old.state == "P":
            self.leave_line(old)
        self.entries[task] = entry = _entry(store.records[task], store.messages.get(task))
        if task in store.twins:
            entry.twin = _entry(store.twins[task], store.twin_messages[task])

    def withdraw(self, task: str) -> list[bytes]:
        """The messages that were waiting."""
        entry = self.entries.get(task)
        waiting = [] if entry is None or entry.twin is None else [entry.twin.message or b""]
        if entry and entry.state == "P":
            self.leave_line(entry)
            del self.entries[task]
            return [entry.message or b"", *waiting]
        if entry:
            entry.twin = None
        return waiting

    def messages(self) -> dict[str, bytes]:
        return {task: entry.message for task, entry in self.entries.items() if entry.message is not None}

    def twins(self) -> dict[str, Entry]:
        return {task: entry.twin for task, entry in self.entries.items() if entry.twin}

    def _waiting(self, state: str, parcel: Parcel, ticket: str) -> Entry:
        return Entry(state, parcel.limit.name, parcel.attempt, ticket, parcel.queue, 0, parcel.message)

    def _next_ticket(self) -> str:
        self.ticket += 1
        return f"{self.ticket:016d}"
