"""A model of the scripts for tasks of one limit each, in plain Python: no keys, no indexes, no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange import Arrival, Delivery, DeliveryChange
from celery_throttle.store.exchange_reply import Answer, Grant
from tests.store.facts_table import comes_back, second_goes_on
from tests.store.peek import Snapshot

__all__ = ["Entry", "Model", "limit_of"]

_LOST = Facts(True, Message.LOST)


@dataclass
class Entry:
    """One delivery of a task: held if it has a nonce, else parked; with the delivery that waits for it."""

    limit: str
    attempt: int
    ticket: int = 0
    queue: str = ""
    deliveries: int = 0
    message: bytes | None = None
    nonce: str = ""
    #: the workers that parked it, each with its call, and the deliveries of it that the broker keeps
    told: dict[str, int] = field(default_factory=dict)
    unacked: set[str] = field(default_factory=set)
    #: its lease has ended
    expired: bool = False
    #: another run of its task, which had lost its lease, succeeded
    over: bool = False
    second: Entry | None = None

    def await_(self, delivery: Entry) -> None:
        """Another message of it is at the broker."""
        self.told |= delivery.told
        self.unacked |= delivery.unacked

    @property
    def seen(self) -> tuple[object, ...]:
        """The part of it that is visible in the store."""
        return self.nonce, self.limit, self.attempt, self.queue, self.deliveries


def limit_of(needs: str) -> str:
    """The limit of a task that needs one permit."""
    return needs.partition(":")[2]


@dataclass
class Model:
    """The store, by its rules."""

    permits: dict[str, int] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)
    #: last number carried out, and the tasks parked in it, by worker
    calls: dict[str, int] = field(default_factory=dict)
    unsure: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    #: attempts of tasks that are known to have run, while one of these may come: a delivery that is kept, one whose
    #: acknowledgement the worker has not reported yet, one that the broker will deliver again
    ran: dict[tuple[int, str], set[str]] = field(default_factory=dict)
    #: lanes (limit, queue) that are passed over
    passed: set[tuple[str, str]] = field(default_factory=set)
    ticket: int = 0

    # -- places --------------------------------------------------------------------------------------------------------

    def held(self, *, expired: bool) -> list[str]:
        return sorted(task for task, each in self.entries.items() if each.nonce and each.expired == expired)

    def free(self, limit: str) -> int:
        return self.permits[limit] - sum(bool(each.nonce) and each.limit == limit for each in self.entries.values())

    def line(self, limit: str) -> list[str]:
        found = [(e.ticket, task) for task, e in self.entries.items() if not e.nonce and e.limit == limit]
        return [task for _, task in sorted(found)]

    def startable(self, queues: Collection[str]) -> list[str]:
        """Return the tasks that can start in a slot of these queues, oldest first: one of each limit."""
        found = [self._next(limit, queues) for limit in self.permits if self.free(limit) > 0]
        return sorted((task for task in found if task), key=lambda task: self.entries[task].ticket)

    def _next(self, limit: str, queues: Collection[str]) -> str | None:
        for task in self.line(limit):
            queue = self.entries[task].queue
            if queue in queues:
                return task
            if (limit, queue) not in self.passed:
                return None
        return None

    # -- one call ------------------------------------------------------------------------------------------------

    def ended(self, row: DeliveryChange) -> Entry | None:
        """End a run; return its entry as it was, or None if that nonce held nothing."""
        entry = self.entries.get(row.task)
        if not entry or entry.nonce != row.nonce or not entry.nonce:
            self._ended_late(row)
            return None
        before, facts = replace(entry), _facts_of(row)
        if entry.over:
            facts = self._end_over(row, entry)
        if comes_back(facts, stored=entry.message is not None) and not entry.over:
            entry.nonce, entry.expired = "", False
            entry.deliveries += facts.began and facts.message is not Message.HEAD
            if facts.message is Message.TAIL:
                entry.ticket = self._next_ticket()
            return before
        del self.entries[row.task]
        only_told = not facts.began and facts.message is Message.NOBODY
        began = facts.began or facts.message is Message.BROKER
        if only_told or (began and facts.result is not Result.NOTHING):
            self._note_ran(row.task, entry, comes_again=facts.message is Message.BROKER)
        second = entry.second
        if second and second_goes_on(facts, later_attempt=second.attempt > entry.attempt):
            self.entries[row.task] = second
        elif second:
            self._note_ran(row.task, second, comes_again=False)
        return before

    def _ended_late(self, row: DeliveryChange) -> None:
        """A run has ended that had lost its lease: if it succeeded, no copy of its task starts any more."""
        entry, again = self.entries.get(row.task), _facts_of(row).message is Message.BROKER
        if not again:
            self._will_not_come(row.attempt, row.task, row.nonce)
        if _facts_of(row).result is not Result.SUCCESS:
            return
        if again:
            self._note_ran(row.task, Entry("", row.attempt), comes_again=True)
        if entry and entry.second:
            self._note_ran(row.task, entry.second, comes_again=False)
            entry.second = None
        if entry and entry.nonce:
            entry.over = True
        elif entry:
            del self.entries[row.task]
            self._note_ran(row.task, entry, comes_again=again)

    def _end_over(self, row: DeliveryChange, entry: Entry) -> Facts:
        """End a run after another has succeeded: it is a success, and its expected retry is dropped."""
        message, result = _facts_of(row).message, _facts_of(row).result
        if message is Message.LOST:
            entry.unacked.add(entry.nonce)
        elif result is Result.RETRY:
            self._note_ran(row.task, Entry("", entry.attempt + 1), comes_again=True)
        return Facts(True, message, Result.SUCCESS)

    def _note_ran(self, task: str, entry: Entry, *, comes_again: bool) -> None:
        left = set(entry.unacked)
        left.update(worker for worker, call in entry.told.items() if 0 < self.calls.get(worker, 0) <= call)
        if comes_again:
            left.add("AGAIN")
        if left:
            self.ran.setdefault((entry.attempt, task), set()).update(left)

    def _will_not_come(self, attempt: int, task: str, name: str) -> None:
        left = self.ran.get((attempt, task), set())
        left.discard(name)
        if not left:
            self.ran.pop((attempt, task), None)

    def began(self, task: str, nonce: str) -> None:
        entry = self.entries.get(task)
        if entry and entry.nonce == nonce:
            entry.message = None

    def confirm(self, worker: str, unacked: Collection[Delivery]) -> None:
        """Confirm the messages that the worker parked with its previous call, except this one."""
        for each in unacked:
            self._note(each.task, each.attempt, Entry("", 0, unacked={each.nonce}))
        for attempt, task in self.unsure.pop(worker, []):
            self._will_not_come(attempt, task, worker)

    def _note(self, task: str, attempt: int, delivery: Entry) -> None:
        """Another message of this attempt is at the broker, too."""
        entry = self.entries.get(task)
        if entry and entry.second and entry.second.attempt == attempt:
            entry.second.await_(delivery)
        elif entry and entry.attempt == attempt:
            entry.await_(delivery)
        elif (attempt, task) in self.ran or (
            entry and max(entry.attempt, entry.second.attempt if entry.second else 0) > attempt
        ):
            self._note_ran(task, replace(delivery, attempt=attempt), comes_again=False)

    def _tell_that_it_ran(self, worker: str, number: int, arrival: Arrival) -> None:
        told = Entry("", arrival.attempt, told={worker: number})
        self._note_ran(arrival.task, told, comes_again=False)
        self._is_told(worker, arrival)

    def _is_told(self, worker: str, arrival: Arrival) -> None:
        """That its message is not needed: with its next call it has acknowledged it."""
        self.unsure.setdefault(worker, []).append((arrival.attempt, arrival.task))

    def acked(self, task: str, attempt: int, nonce: str) -> None:
        """The broker does not keep this delivery any more."""
        entry = self.entries.get(task)
        for each in (entry, entry.second) if entry else ():
            if each:
                each.unacked.discard(nonce)
        self._will_not_come(attempt, task, nonce)

    def withdraw(self, task: str) -> list[bytes]:
        """The messages that were waiting."""
        entry, found = self.entries.get(task), []
        if entry and not entry.nonce:
            found.append(entry.message or b"")
            if entry.unacked:
                self._note_ran(task, entry, comes_again=False)
            del self.entries[task]
        if entry and entry.second:
            found.append(entry.second.message or b"")
            entry.second = None
        return found

    def reap(self, most: int) -> list[str]:
        cleared = self.held(expired=True)[:most]
        for task in cleared:
            self._reclaim(task)
        return cleared

    def admit(self, worker: str, number: int, arrival: Arrival) -> int:
        answer = self._meet(worker, number, arrival)
        if answer is not None:
            return answer
        limit = limit_of(arrival.needs)
        queues = {self.entries[task].queue for task in self.line(limit)}
        waits = any(queue == arrival.queue or (limit, queue) not in self.passed for queue in queues)
        if waits or self.free(limit) <= 0:
            return Answer.MUST_PARK
        self.entries[arrival.task] = Entry(limit, arrival.attempt, queue=arrival.queue, nonce=arrival.nonce)
        return Answer.GRANTED

    def _meet(self, worker: str, number: int, arrival: Arrival) -> int | None:
        """Decide about a delivery by the state of its own task."""
        entry = self.entries.get(arrival.task)
        if entry and entry.nonce and entry.nonce != arrival.nonce:
            if not entry.expired:
                return Answer.MUST_PARK
            self._reclaim(arrival.task)
            entry = self.entries.get(arrival.task)
        if entry and entry.nonce:
            entry.expired = False
            return Answer.GRANTED
        if entry and arrival.attempt > entry.attempt:
            return Answer.MUST_PARK
        if entry:
            self._note(arrival.task, arrival.attempt, _delivery(worker, number, arrival))
            self._is_told(worker, arrival)
            return Answer.PARKED
        if (arrival.attempt, arrival.task) in self.ran:
            self._tell_that_it_ran(worker, number, arrival)
            return Answer.HAS_RUN
        return None

    def park(self, worker: str, number: int, parcel: Arrival) -> int:
        entry = self.entries.get(parcel.task)
        if (parcel.attempt, parcel.task) in self.ran:
            self._tell_that_it_ran(worker, number, parcel)
            return Answer.HAS_RUN
        delivery = _delivery(worker, number, parcel)
        if entry is None:
            self.entries[parcel.task] = replace(delivery, ticket=self._next_ticket())
        elif entry.nonce:
            second = entry.second
            if not second or parcel.attempt > second.attempt:
                ticket = second.ticket if second else self._next_ticket()
                if second:
                    self._note_ran(parcel.task, second, comes_again=False)
                entry.second = replace(delivery, ticket=ticket)
            else:
                self._note(parcel.task, parcel.attempt, delivery)
        elif parcel.attempt > entry.attempt:
            self._note_ran(parcel.task, entry, comes_again=False)
            entry.attempt, entry.message, entry.queue = parcel.attempt, parcel.message, parcel.queue
            entry.told, entry.unacked, entry.deliveries = delivery.told, delivery.unacked, 0
        else:
            self._note(parcel.task, parcel.attempt, delivery)
        self._is_told(worker, parcel)
        return Answer.PARKED

    def resumed(self, grant: Grant) -> None:
        """Check that a parked task could be started: there was room, and no task was before it."""
        entry = self.entries[grant.task]
        assert self.free(entry.limit) > 0, f"{grant.task} started without a free permit"
        before = [self.entries[task] for task in self.line(entry.limit) if self.entries[task].ticket < entry.ticket]
        overtaken = [
            each for each in before if each.queue == entry.queue or (each.limit, each.queue) not in self.passed
        ]
        assert not overtaken, f"{grant.task} overtook {overtaken}"
        told = (limit_of(grant.needs), grant.attempt, grant.queue, grant.deliveries, grant.message)
        assert told == (entry.limit, entry.attempt, entry.queue, entry.deliveries, entry.message)
        entry.nonce = grant.nonce

    # -- others --------------------------------------------------------------------------------------------------

    def renew(self, worker: str, number: int, held: Arrival) -> int | None:
        """The answer, or None where a message of the same task waits by now, see `adopt`."""
        entry = self.entries.get(held.task)
        if entry and entry.nonce:
            if entry.nonce == held.nonce:
                entry.expired = False
            return int(entry.nonce == held.nonce)
        if self.calls.get(worker, 0) > number:
            return 3
        limit = limit_of(held.needs)
        if limit in self.permits and self.free(limit) <= 0:
            return 0
        if entry:
            return None
        self.entries[held.task] = Entry(limit, held.attempt, queue=held.queue, nonce=held.nonce)
        return 2

    def adopt(self, task: str, store: Snapshot) -> None:
        """Take over the store's changes of a task."""
        before = self.entries[task]
        self.entries[task] = entry = _entry(store, task)
        entry.ticket = before.ticket if store.records[task].ticket else 0
        if task in store.seconds:
            kept = before.second is not None and before.second.attempt >= before.attempt
            entry.second = _entry(store, task, second=True)
            entry.second.ticket = before.second.ticket if before.second and kept else before.ticket
        for attempt in (number for number, each in store.ran if each == task):
            self.ran[attempt, task] = store.ran[attempt, task]

    def declare(self, limits: Iterable[Limit]) -> None:
        self.permits.update((limit.name, limit.permits or 0) for limit in limits)

    def messages(self) -> dict[str, bytes]:
        return {task: each.message for task, each in self.entries.items() if each.message is not None}

    def seconds(self) -> dict[str, Entry]:
        return {task: each.second for task, each in self.entries.items() if each.second}

    def _reclaim(self, task: str) -> None:
        self.ended(DeliveryChange("ended", task, 0, self.entries[task].nonce, _LOST))

    def _next_ticket(self) -> int:
        self.ticket += 1
        return self.ticket


def _delivery(worker: str, number: int, parcel: Arrival) -> Entry:
    """Deliver a parked task again: its worker acknowledges it with its next call, or the broker keeps it."""
    entry = Entry(limit_of(parcel.needs), parcel.attempt, queue=parcel.queue, message=parcel.message)
    if parcel.unacked:
        entry.unacked.add(parcel.nonce)
    else:
        entry.told[worker] = number
    return entry


def _entry(store: Snapshot, task: str, *, second: bool = False) -> Entry:
    record = (store.seconds if second else store.records)[task]
    message = (store.second_messages if second else store.messages).get(task)
    ((limit, _),) = record.needs
    place = 0, record.queue, record.deliveries  # its ticket is for the caller to tell
    return Entry(limit, record.attempt, *place, message, record.nonce, record.told, record.unacked)


def _facts_of(row: DeliveryChange) -> Facts:
    assert row.facts
    return row.facts
