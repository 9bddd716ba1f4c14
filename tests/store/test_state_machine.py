"""Any sequence of calls by several workers, against a model.

``HYPOTHESIS_EXAMPLES=5000`` runs that many random sequences; without it the same few run every time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange import Arrival, DeliveryChange
from celery_throttle.store.exchange import Delivery as Kept
from celery_throttle.store.exchange_reply import Answer
from tests.store.caller import ENDS, Caller, Heard, Rows, ended, held_by
from tests.store.model import Entry, Model
from tests.store.peek import KEY, Record, Snapshot, check, expire, let_come_due, pass_over, peek
from tests.support.machines import one_of, run_machine

# One is the beginning of the other: in the line, they must not run into each other.
LIMITS = ("gpu", "gpu é", "gpu2")
QUEUES = (("a",), ("a2",), ("a", "a2"))
SLOTS = (4, 2, 5)
DISTURBANCES = ("declare",) * 6 + ("kill",) * 3 + ("forget scripts", "forget everything")
REAPED_BY_EXCHANGE = 8

Lost = Literal["no", "call", "reply"]
outcomes = st.sampled_from(("done", "failed", "retry", "ignored", "again", "requeue", "return", "never"))
losses = st.sampled_from(("no", "no", "no", "no", "no", "call", "reply"))
picks = st.integers(0, 9)
claims = st.integers(0, 3)


class Delivery(NamedTuple):
    """A message from the broker."""

    task: str
    limit: str
    attempt: int


@dataclass
class Worker:
    """A worker process: its own view, which may differ from the store."""

    caller: Caller
    slots: int
    running: dict[str, Arrival] = field(default_factory=dict)
    #: runs whose message the store keeps
    stored: set[str] = field(default_factory=set)
    #: refused, to be parked with the next call that parks
    refused: list[Arrival] = field(default_factory=list)
    ended: list[DeliveryChange] = field(default_factory=list)
    #: the call under way whose reply never came, and the answer if it was carried out
    unheard: tuple[Rows, Heard | None] | None = None
    #: parked, and not reported as acknowledged yet
    kept: list[Kept] = field(default_factory=list)
    #: before its last call: the permits that it held, and the number of the call before
    earlier: tuple[int, list[Arrival]] = (0, [])

    @property
    def free(self) -> int:
        return max(self.slots - len(self.running) - len(self.refused), 0)


class StoreMachine(RuleBasedStateMachine):
    """Several workers on one store."""

    client: ClassVar[Redis]

    def __init__(self) -> None:
        super().__init__()
        self.client.flushall()
        self.model = Model()
        self.permits = dict(zip(LIMITS, (1, 2, 2), strict=True))
        self.born = self.messages = 0
        self.workers = [self._worker(queues, slots) for queues, slots in zip(QUEUES, SLOTS, strict=True)]
        self.attempts: dict[str, Delivery] = {}

    # -- calls of the workers ------------------------------------------------------------------------------------------

    @precondition(lambda self: any(worker.free for worker in self.connected))
    @rule(
        pick=picks,
        tasks=st.lists(st.tuples(st.sampled_from(LIMITS), st.booleans(), st.booleans()), min_size=1, max_size=3),
        slots=claims,
        lost=losses,
    )
    def deliver(self, pick: int, tasks: list[tuple[str, bool, bool]], slots: int, lost: Lost) -> None:
        """The broker delivers new tasks: some ask, some are parked at once."""
        me = one_of([worker for worker in self.connected if worker.free], pick)
        said = Rows()
        for limit, asks, kept in tasks:
            new = Delivery(f"t{len(self.attempts)}", limit, 0)
            self._enter(me, new, pick, said, asks=asks and len(said.asked) < me.free, kept=kept)
        self._say(me, said, slots, lost)

    @precondition(lambda self: self.attempts and any(worker.free for worker in self.connected))
    @rule(
        pick=picks,
        task=picks,
        step=st.sampled_from((0, 0, 1, -1)),
        asks=st.booleans(),
        kept=st.booleans(),
        slots=claims,
        lost=losses,
    )
    def deliver_again(self, pick: int, task: int, step: int, asks: bool, kept: bool, slots: int, lost: Lost) -> None:
        """The broker delivers a task id that it delivered before: the same message, or a retry."""
        me = one_of([worker for worker in self.connected if worker.free], pick)
        known = one_of(list(self.attempts.values()), -1 - task)
        said = Rows()
        self._enter(me, known._replace(attempt=max(known.attempt + step, 0)), pick, said, asks=asks, kept=kept)
        self._say(me, said, slots, lost)

    @precondition(lambda self: any(worker.running or worker.refused for worker in self.connected))
    @rule(
        pick=picks,
        ends=st.lists(st.tuples(picks, outcomes), max_size=3),
        begin=picks,
        revoke=picks,
        unacked=st.booleans(),
        acked=picks,
        slots=claims,
        lost=losses,
    )
    def go_on(
        self,
        pick: int,
        ends: list[tuple[int, str]],
        begin: int,
        revoke: int,
        unacked: bool,
        acked: int,
        slots: int,
        lost: Lost,
    ) -> None:
        """End runs in several ways; park refused tasks; begin, revoke and acknowledge one."""
        me = one_of([worker for worker in self.connected if worker.running or worker.refused], pick)
        said = Rows(parked=me.refused)
        me.refused = []
        for which, how in ends:
            if me.running:
                run = me.running.pop(one_of(list(me.running), which))
                facts = ENDS[how] if run.nonce in me.stored else how
                said.ended.append(ended(run, facts))
        if me.running and begin < 3:
            run = one_of(list(me.running.values()), begin)
            said.began.append((run.task, run.nonce))
        if self.attempts and revoke < 2:
            said.revoked.append(one_of(list(self.attempts), -1 - revoke))
        if unacked:
            said.unacked += [Kept(each.task, each.attempt, each.nonce) for each in me.caller.last.parked]
            me.kept += said.unacked
        if me.kept and acked < 7:
            said.acked.append(me.kept.pop(acked % len(me.kept)))
        self._say(me, said, slots, lost)

    @precondition(lambda self: self.connected)
    @rule(pick=picks, slots=claims, lost=losses)
    def look(self, pick: int, slots: int, lost: Lost) -> None:
        self._say(one_of(self.connected, pick), Rows(), slots, lost)

    @precondition(lambda self: len(self.connected) < len(self.workers))
    @rule()
    def reconnect(self) -> None:
        """A worker that missed a reply sends the same call again."""
        me = next(worker for worker in self.workers if worker.unheard)
        assert me.unheard
        (said, reply), me.unheard = me.unheard, None
        if reply is None:
            self._carry_out(me, said, heard=True)
            return
        before = peek(self.client)
        again = me.caller.again()
        after = peek(self.client)
        if me.caller.number != self.model.calls.get(me.caller.name):
            pytest.fail("the store was emptied, see `disturb`")
        assert after.hashes == before.hashes
        assert {**after.sets, "leases": after.leases.keys()} == {**before.sets, "leases": before.leases.keys()}
        holds = {entry.nonce for entry in self.model.entries.values()}
        answered = [(each.task, each.nonce) for each in said.asked] + [(each.task, each.nonce) for each in reply.grants]
        for task in (task for task, nonce in answered if nonce in holds):
            self.model.entries[task].expired = False  # its lease begins anew
        granted = Answer.GRANTED
        assert again.asked == tuple(
            Answer.MUST_PARK if answer == granted and run.nonce not in holds else answer
            for run, answer in zip(said.asked, reply.asked, strict=True)
        )
        assert again.parked == reply.parked
        assert [each.nonce for each in again.grants] == [each.nonce for each in reply.grants if each.nonce in holds]
        self._heard(me, said, again)

    @precondition(lambda self: any(worker.running for worker in self.workers))
    @rule(late=st.booleans())
    def renew(self, late: bool) -> None:
        """All leases, by threads that do not care about lost replies; or a renewal that a call overtook."""
        for me in self.workers:
            number, held = me.earlier if late else (me.caller.number, list(me.running.values()))
            if me.unheard and not late:
                number -= 1
            for run in held:
                expected = self.model.renew(me.caller.name, number, run)
                (answer,) = me.caller.renew(run, number=number)
                if expected is None:
                    assert answer == 2
                    self.model.adopt(run.task, peek(self.client))
                else:
                    assert answer == expected
                self.model.passed &= self._passed(peek(self.client))

    @precondition(lambda self: any(worker.ended for worker in self.connected))
    @rule(pick=picks, which=picks)
    def end_again(self, pick: int, which: int) -> None:
        """End an ended run once more: nothing happens, but a success counts for every copy."""
        me = one_of([worker for worker in self.connected if worker.ended], pick)
        row = one_of(me.ended, -1 - which)
        self._say(me, Rows(ended=[row]), 0, "no")

    # -- events elsewhere ----------------------------------------------------------------------------------------------

    # Before the first call after the loss of the data, all workers count as away.
    @precondition(lambda self: self.model.calls and self.model.held(expired=False))
    @precondition(lambda self: len(self.model.held(expired=True)) < 8)
    @rule(pick=picks, most=st.integers(0, 2))
    def lease_ends(self, pick: int, most: int) -> None:
        """A worker was silent for too long; beat comes by, or not yet."""
        task = one_of(self.model.held(expired=False), pick)
        expire(self.client, task)
        self.model.entries[task].expired = True
        if most:
            assert [task for task, _ in self.workers[0].caller.reap(most)] == self.model.reap(most)

    @precondition(lambda self: bool(peek(self.client).offered))
    @rule(pick=picks)
    def time_passes(self, pick: int) -> None:
        """A queue did not take its turn in time."""
        lane = one_of(sorted(peek(self.client).offered), pick)
        needs, queue = lane.split("\0")
        pass_over(self.client, needs.partition(":")[2], queue)

    @precondition(lambda self: bool(peek(self.client).passed))
    @rule(pick=picks)
    def passed_for_long_enough(self, pick: int) -> None:
        lane = one_of(sorted(peek(self.client).passed), pick)
        let_come_due(self.client, "lane", lane)

    @rule(what=st.sampled_from(DISTURBANCES), pick=picks, permits=st.integers(1, 3))
    def disturb(self, what: str, pick: int, permits: int) -> None:
        """Another number of permits, a worker killed, a server that forgets the scripts or everything."""
        number = pick % len(self.workers)
        me = self.workers[number]
        if what == "declare":
            self.permits[one_of(LIMITS, pick)] = permits
            self._declare(me.caller)
        elif what == "kill":
            # Its permits stay held until the leases end; another one takes its place.
            self.workers[number] = self._worker(me.caller.queues, me.slots)
        elif what == "forget scripts":
            self.client.script_flush()
        else:
            # Holders can put themselves back, parked messages are gone.
            self.client.flushall()
            self.model = Model()
            for worker in self.workers:
                self._declare(worker.caller)
                if worker.unheard:  # to be carried out again
                    worker.unheard = worker.unheard[0], None

    # -- invariants ----------------------------------------------------------------------------------------------------

    @invariant()
    def the_store_is_as_the_model(self) -> None:
        store = peek(self.client)
        check(store)
        model = self.model
        told = {
            task: (each.nonce, each.needs[0][0], each.attempt, each.queue, each.deliveries)
            for task, each in store.records.items()
        }
        assert told == {task: entry.seen for task, entry in model.entries.items()}
        # A holder that never was parked has no ticket to tell.
        assert _in_order(store.records) == _in_order(model.entries)
        assert store.messages == model.messages()
        assert store.second_messages == {task: second.message for task, second in model.seconds().items()}
        assert store.ran == model.ran
        assert {task: each.unacked for task, each in store.records.items()} == {
            task: each.unacked for task, each in model.entries.items()
        }
        assert {task: each.unacked for task, each in store.seconds.items()} == {
            task: each.unacked for task, each in model.seconds().items()
        }
        assert store.limits == model.permits
        assert sorted(task for task, till in store.leases.items() if till <= store.now) == model.held(expired=True)
        self._stop_time(store)

    def teardown(self) -> None:
        """Everything finishes, and the keyspace is back where it was."""
        if sys.exc_info()[0] is not None:
            return
        while len(self.connected) < len(self.workers):
            self.reconnect()
        for me in self.workers:
            while me.refused or me.running:
                said = Rows(parked=me.refused, ended=[ended(run) for run in me.running.values()][:50])
                me.refused, me.running = [], {}
                self._say(me, said, 0, "no")
        for task in self.model.held(expired=False):
            self.model.entries[task].expired = True
            expire(self.client, task)
        last = self._worker(("a", "a2"), 9)
        self.workers.append(last)
        for _ in range(3 * self.messages + 9):
            self._say(last, Rows(ended=[ended(run) for run in last.running.values()]), 9, "no", every=True)
            self.the_store_is_as_the_model()
            if not last.running and not self.model.entries:
                break
        assert not self.model.entries
        for me in self.workers:
            me.caller.leave()
        store = peek(self.client)
        left = {name for name, content in (store.hashes | store.sets).items() if content}
        assert not store.records
        assert left <= {"limits", "meta", "records", "workers", "ends", "due"}

    # -- how it is done ------------------------------------------------------------------------------------------

    def _worker(self, queues: tuple[str, ...], slots: int) -> Worker:
        self.born += 1
        me = Worker(Caller(self.client, f"{self.born:08x}", *queues), slots)
        self._declare(me.caller)
        return me

    def _declare(self, caller: Caller) -> None:
        limits = [Limit(*item) for item in self.permits.items()]
        caller.declare(*limits)
        self.model.declare(limits)

    @property
    def connected(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.unheard is None]

    def _enter(self, me: Worker, what: Delivery, pick: int, said: Rows, *, asks: bool, kept: bool) -> None:
        known = self.attempts.get(what.task, what)
        self.attempts[what.task] = max(known, what, key=lambda delivery: delivery.attempt)
        self.messages += 1
        queue, limit = one_of(me.caller.queues, pick), Limit(what.limit, 9)
        message = f"{what.task}#{what.attempt}#{self.messages}".encode()
        if asks:
            arrival = me.caller.arrival(what.task, limit, attempt=what.attempt, queue=queue)
            said.asked.append(arrival._replace(message=message))
        else:
            new = me.caller.parcel(what.task, limit, attempt=what.attempt, queue=queue, message=message, unacked=kept)
            said.parked.append(new)
            if kept:
                me.kept += me.caller.parcelled(what.task)

    def _say(self, me: Worker, said: Rows, slots: int, lost: Lost, *, every: bool = False) -> None:
        for row in said.ended:
            me.running.pop(row.nonce, None)
        said.slots = slots if every else min(slots, max(me.free - len(said.asked), 0))
        me.earlier = me.caller.number, list(me.running.values())
        me.caller.number += 1
        me.caller.last = said
        if lost == "call":
            me.unheard = said, None
        else:
            self._carry_out(me, said, heard=lost == "no")

    def _carry_out(self, me: Worker, said: Rows, *, heard: bool) -> None:
        model, name, number = self.model, me.caller.name, me.caller.number
        for row in said.ended:
            model.ended(row)
        for task, nonce in said.began:
            model.began(task, nonce)
        model.confirm(name, said.unacked)
        model.calls[name] = number
        for each in said.acked:
            model.acked(*each)
        withdrawn = [message for task in said.revoked for message in model.withdraw(task)]
        model.reap(REAPED_BY_EXCHANGE)
        asked = tuple(model.admit(name, number, arrival) for arrival in said.asked)
        parked = tuple(model.park(name, number, parcel) for parcel in said.parked)
        slots = said.slots + sum(answer != Answer.GRANTED for answer in asked)
        passed = set(model.passed)
        reply = me.caller.again()
        assert (reply.asked, reply.parked) == (asked, parked)
        assert [each.message for each in reply.withdrawn] == withdrawn
        self._granted(me, reply, slots, passed)
        if heard:
            self._heard(me, said, reply)
        else:
            me.unheard = said, reply

    def _granted(self, me: Worker, reply: Heard, slots: int, passed: set[tuple[str, str]]) -> None:
        """The oldest that can start in these slots, none of them too many, and none left out."""
        model, queues = self.model, me.caller.queues
        assert len(reply.grants) <= slots
        now = self._passed(peek(self.client))
        model.passed = passed | now
        for grant in reply.grants:
            model.resumed(grant)
        model.passed = now
        left_out = model.startable(queues)
        assert not left_out or len(reply.grants) == slots, f"{left_out} could have started"
        if left_out and reply.grants:
            newest = max(model.entries[grant.task].ticket for grant in reply.grants)
            oldest = model.entries[left_out[0]]
            # Tasks that had to wait until another was passed over come later in the same call.
            assert oldest.ticket > newest or now != passed, f"{left_out[0]} was left out"
        # Whether a ready task still can start is found out in a slot.
        assert reply.more or not left_out
        assert not reply.more or len(reply.grants) == slots

    def _heard(self, me: Worker, said: Rows, reply: Heard) -> None:
        me.ended += said.ended
        for run, answer in zip(said.asked, reply.asked, strict=True):
            if answer == Answer.GRANTED:
                me.running[run.nonce] = run._replace(message=b"")
            elif answer == Answer.MUST_PARK:
                me.refused.append(run)
        for grant in reply.grants:
            me.running[grant.nonce] = held_by(grant)
            me.stored.add(grant.nonce)

    def _passed(self, store: Snapshot) -> set[tuple[str, str]]:
        lanes = (lane.split("\0") for lane in store.passed)
        return {(needs.partition(":")[2], queue) for needs, queue in lanes}

    def _stop_time(self, store: Snapshot) -> None:
        """Time does not pass by itself here: an offer stands until `time_passes`, and so on."""
        later = store.now + 3_600_000
        for lane in store.offered:
            entry = store.lanes[lane]
            if entry["offered"] != 1:
                packed = json.dumps({**entry, "offered": later}, separators=(",", ":"))
                self.client.hset(KEY["lanes"], lane, packed)
        for lane, till in store.due("lane").items():
            if till != 1:
                self.client.zadd(KEY["due"], {f"lane:{lane}": later})


def _in_order(entries: Mapping[str, Record] | Mapping[str, Entry]) -> list[str]:
    """Return the tasks that have a place in line, or had one, in its order."""
    return sorted((task for task, each in entries.items() if each.ticket), key=lambda task: entries[task].ticket)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # finding the smallest failing sequence takes minutes
def test_any_sequence_of_calls_keeps_the_rules_of_the_store(redis: Redis) -> None:
    """Limits, order, second deliveries, replays and put-back hold for all that workers, broker and server do."""

    class OnThisServer(StoreMachine):
        client = redis

    run_machine(OnThisServer, examples=25, steps=40, random_steps=80)
