"""Any sequence of calls by several workers, against a model.

``HYPOTHESIS_EXAMPLES=5000`` runs that many random sequences; without it the same few run every time.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from celery_throttle.core.limits import Limit
from celery_throttle.store.replies import Answer, Reply
from tests.store.caller import GRANTED, Caller, Held, Parcel
from tests.store.model import Model, Turn
from tests.store.peek import META, check, expire, pass_over, peek
from tests.support.machines import run_machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis import Redis

    from tests.store.model import Entry, Outcome
    from tests.store.peek import Snapshot

# One is the beginning of the other: in the line, they must not run into each other.
LIMITS = ("gpu", "gpu é", "gpu2")
QUEUES = (("a",), ("a2",), ("a", "a2"))
SLOTS = (4, 2, 5)
DISTURBANCES = ("declare",) * 6 + ("kill",) * 3 + ("forget scripts", "forget everything", "restart empty")
REAPED_BY_EXCHANGE, REAPED_BY_LOOK = 8, 64

T = TypeVar("T")
Lost = Literal["no", "call", "reply"]
outcomes = st.sampled_from(("done", "again", "requeue", "return"))
losses = st.sampled_from(("no", "no", "no", "no", "no", "no", "call", "reply"))
picks = st.integers(0, 9)


claims = st.integers(0, 3)
direct = st.sampled_from((False, False, True))


class Delivery(NamedTuple):
    """A message from the broker."""

    task: str
    limit: str
    attempt: int


@dataclass
class Entering:
    """A delivery that has a slot but no permit yet."""

    held: Held
    parcel: Parcel


@dataclass
class Exchange:
    """What goes out with one exchange."""

    released: list[tuple[str, str, Outcome]] = field(default_factory=list)
    asked: list[Entering] = field(default_factory=list)


@dataclass
class Worker:
    """A worker process: what it believes, which is not always what the store knows."""

    caller: Caller
    slots: int
    running: dict[str, Held] = field(default_factory=dict)
    entering: list[Entering] = field(default_factory=list)
    ended: list[tuple[str, str, Outcome]] = field(default_factory=list)
    calls: int = 0
    birth: str = ""
    #: a call whose reply never came
    unheard: Exchange | list[Parcel] | None = None

    @property
    def free(self) -> int:
        return self.slots - len(self.running) - len(self.entering)


class StoreMachine(RuleBasedStateMachine):
    """Several workers on one store."""

    client: ClassVar[Redis]

    def __init__(self) -> None:
        super().__init__()
        self.client.flushall()
        self.model = Model()
        self.declared = dict(zip(LIMITS, (1, 2, 2), strict=True))
        self.born = 0
        self.workers: list[Worker] = []
        self.workers += [self._worker(queues, slots) for queues, slots in zip(QUEUES, SLOTS, strict=True)]
        self.attempts: dict[str, Delivery] = {}
        self.messages = 0
        #: accepted messages that nobody has answered for yet
        self.owed: dict[bytes, tuple[str, int]] = {}
        #: the message that each run was started with, by the run's nonce
        self.carried: dict[str, bytes] = {}
        self.killed: list[str] = []

    # -- what the workers do -------------------------------------------------------------------------------------

    @precondition(lambda self: any(worker.free > 0 for worker in self.connected))
    @rule(pick=picks, limit=st.sampled_from(LIMITS), direct=direct, claims=claims, lost=losses)
    def deliver(self, pick: int, limit: str, direct: bool, claims: int, lost: Lost) -> None:
        """The broker delivers a new task."""
        me = self._one_of([worker for worker in self.connected if worker.free > 0], pick)
        self._deliver(me, Delivery(f"t{len(self.attempts)}", limit, 0), pick, direct, claims, lost)

    @precondition(lambda self: self.attempts and any(worker.free > 0 for worker in self.connected))
    @rule(pick=picks, task=picks, step=st.sampled_from((0, 0, 1, -1)), direct=direct, claims=claims, lost=losses)
    def deliver_again(self, pick: int, task: int, step: int, direct: bool, claims: int, lost: Lost) -> None:
        """The broker delivers a task id that it delivered before: the same message, or a retry."""
        me = self._one_of([worker for worker in self.connected if worker.free > 0], pick)
        known = self._one_of(list(self.attempts.values()), -1 - task)
        again = Delivery(known.task, known.limit, max(known.attempt + step, 0))
        self._deliver(me, again, pick, direct, claims, lost)

    @precondition(lambda self: any(worker.running for worker in self.connected))
    @rule(pick=picks, ends=st.lists(st.tuples(picks, outcomes), min_size=1, max_size=2), claims=claims, lost=losses)
    def finish(self, pick: int, ends: list[tuple[int, Outcome]], claims: int, lost: Lost) -> None:
        """Runs end, however, and their slots are offered to parked tasks."""
        me = self._one_of([worker for worker in self.connected if worker.running], pick)
        exchange = Exchange()
        for which, outcome in ends:
            if me.running:
                held = me.running.pop(self._one_of(list(me.running), which))
                exchange.released.append((held.task, held.nonce, outcome))
        self._exchange(me, exchange, claims, lost)

    @precondition(lambda self: any(worker.entering for worker in self.connected))
    @rule(pick=picks, lost=losses)
    def park(self, pick: int, lost: Lost) -> None:
        """Everything that a worker has to park is parked."""
        me = self._one_of([worker for worker in self.connected if worker.entering], pick)
        parcels = [entering.parcel for entering in me.entering]
        slots = max(len(parcels) + min(me.free, 0), 0)
        me.entering.clear()
        me.calls += 1
        if lost != "no":
            me.unheard = parcels
        if lost != "call":
            self._park(me, parcels, slots, heard=lost == "no")

    @precondition(lambda self: len(self.connected) < len(self.workers))
    @rule()
    def reconnect(self) -> None:
        """A worker that lost a reply: the same call again, then back with what it did not hear of."""
        me = next(worker for worker in self.workers if worker.unheard is not None)
        unheard, me.unheard = me.unheard, None
        self._declare(me, me.birth)
        exchange = unheard if isinstance(unheard, Exchange) else Exchange()
        if isinstance(unheard, list):
            self._park(me, unheard, 0)
        mine = {grant.nonce: grant.task_id for grant in me.caller.mine()}
        begin = me.caller.name + ":"
        entries = self.model.entries.items()
        assert mine == {entry.nonce: task for task, entry in entries if entry.nonce.startswith(begin)}
        known = me.running.keys() | {entering.held.nonce for entering in exchange.asked}
        exchange.released.extend((task, nonce, "return") for nonce, task in mine.items() if nonce not in known)
        self._exchange(me, exchange, 0, "no")

    @precondition(lambda self: self.connected)
    @rule(pick=picks, slots=claims)
    def look(self, pick: int, slots: int) -> None:
        me = self._one_of(self.connected, pick)
        self.model.reap(REAPED_BY_LOOK)
        slots = min(slots, max(me.free, 0))
        lines = [limit for limit in LIMITS if self.model.line(limit)]
        watched = bool(lines) and any(entry.state == "H" for entry in self.model.entries.values())
        self._granted(me, me.caller.look(slots), slots, lines, look=True, watched=watched)

    @precondition(lambda self: any(worker.running for worker in self.connected))
    @rule(pick=picks)
    def begin(self, pick: int) -> None:
        """An early-ack task starts: from here on its message is not needed."""
        me = self._one_of([worker for worker in self.connected if worker.running], pick)
        held = self._one_of(list(me.running.values()), pick)
        entry = self.model.entries.get(held.task)
        if entry and entry.nonce == held.nonce:
            self.owed.pop(self.carried.get(held.nonce, b""), None)
            entry.message = None
        self.model.reap(REAPED_BY_EXCHANGE)
        me.caller.exchange(started=[(held.task, held.nonce)])

    @precondition(lambda self: any(worker.running for worker in self.workers))
    @rule()
    def renew(self) -> None:
        """All leases, from threads that do not care about lost replies."""
        for me in self.workers:
            for held in me.running.values():
                expected = self.model.renew(held)
                (answer,) = me.caller.renew(held)
                if expected is None:
                    self.model.adopt(held.task, peek(self.client))
                else:
                    assert answer == expected

    @precondition(lambda self: any(worker.ended for worker in self.connected))
    @rule(pick=picks, which=picks, outcome=outcomes)
    def release_again(self, pick: int, which: int, outcome: Outcome) -> None:
        """What was given back is given back once more: nothing happens."""
        me = self._one_of([worker for worker in self.connected if worker.ended], pick)
        task, nonce, _ = self._one_of(me.ended, -1 - which)
        assert self.model.release(task, nonce, outcome) is None
        self._exchange(me, Exchange([(task, nonce, outcome)]), 0, "no")

    # -- what others do ------------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.live() and len(self.model.expired()) < REAPED_BY_EXCHANGE)
    @rule(pick=picks, most=st.integers(0, 2))
    def lease_ends(self, pick: int, most: int) -> None:
        """A worker was silent for too long; beat comes by, or not yet."""
        task = self._one_of(self.model.live(), pick)
        expire(self.client, task)
        self.model.entries[task].expired = True
        if most:
            assert self.workers[0].caller.reap(most) == self.model.reap(most)

    @precondition(lambda self: self.model.entries)
    @rule(picks=st.lists(picks, min_size=1, max_size=2))
    def withdraw(self, picks: list[int]) -> None:
        """Tasks are revoked: exactly those that wait are taken out."""
        tasks = {self._one_of(list(self.model.entries), pick): None for pick in picks}
        expected = [message for task in tasks for message in self.model.withdraw(task)]
        assert [each.message for each in self.workers[0].caller.withdraw(*tasks)] == expected
        for message in expected:
            self.owed.pop(message, None)

    @precondition(lambda self: self.model.settling)
    @rule()
    def settled(self) -> None:
        """Whoever was there before the store lost everything has put itself back, or never will."""
        self.client.hset(META, "settling", "1")
        self.model.settling = False

    @precondition(lambda self: bool(peek(self.client).offers))
    @rule(pick=picks)
    def time_passes(self, pick: int) -> None:
        """A queue did not take its turn in time, or has been passed over for long enough."""
        offer = limit, queue = self._one_of(sorted(peek(self.client).offers), pick)
        if offer in self.model.passed:
            self.client.hdel(META, f"offer:{limit}\0{queue}")
            self.model.passed.remove(offer)
        else:
            pass_over(self.client, limit, queue)
            self.model.passed.add(offer)

    @rule(what=st.sampled_from(DISTURBANCES), pick=picks, permits=st.integers(1, 3))
    def disturb(self, what: str, pick: int, permits: int) -> None:
        """Another number of permits, a worker killed, a server that forgets the scripts or everything."""
        if what == "declare":
            limit = self._one_of(LIMITS, pick)
            self.declared[limit] = permits
            self._declare(self.workers[pick % len(self.workers)], "")
        elif what == "kill":
            # What it held stays held until the leases end; another one takes its place.
            number = pick % len(self.workers)
            me = self.workers[number]
            self.killed.append(me.caller.name)
            self.workers[number] = self._worker(me.caller.queues, me.slots)
        elif what == "forget scripts":
            self.client.script_flush()
        else:
            # Holders can put themselves back, parked messages are gone.
            self.client.flushall()
            self.model = Model()
            self.owed.clear()
            if what == "restart empty":
                me = self.workers[pick % len(self.workers)]
                self._declare(me, me.birth)

    # -- what must be so -----------------------------------------------------------------------------------------

    @invariant()
    def the_store_is_as_the_model(self) -> None:
        store = peek(self.client)
        check(store)
        entries, twins, records = self.model.entries, self.model.twins(), store.records.items()
        # What else the nonce of a parked one may say is the scripts' own affair.
        named = {task: record if record.state == "H" else record._replace(nonce="") for task, record in records}
        assert named == {task: entry.record for task, entry in entries.items()}
        assert store.twins == {task: twin.record for task, twin in twins.items()}
        assert store.messages == self.model.messages()
        assert store.twin_messages == {task: twin.message for task, twin in twins.items()}
        assert store.limits == self.model.permits
        assert self.model.passed <= store.offers.keys()
        assert sorted(task for task, until in store.leases.items() if until <= store.now) == self.model.expired()
        self._stop_time(store)

    @invariant()
    def nothing_is_lost(self) -> None:
        store = peek(self.client)
        kept = {*store.messages.values(), *store.twin_messages.values()}
        for message, (task, attempt) in [item for item in self.owed.items() if item[0] not in kept]:
            # Two deliveries of one task id that both wait are one.
            waiting = [record for record in (store.records.get(task), store.twins.get(task)) if record]
            assert any(record.state != "H" and record.attempt >= attempt for record in waiting), f"{message!r} is lost"
            del self.owed[message]

    def teardown(self) -> None:
        """Everything finishes, and the keyspace is back where it was."""
        if sys.exc_info()[0] is not None:
            return
        while len(self.connected) < len(self.workers):
            self.reconnect()
        while any(me.entering for me in self.workers):
            self.park(0, "no")
        while any(me.running for me in self.workers):
            self.finish(0, [(0, "done")], 0, "no")
        for task in self.model.live():
            self.model.entries[task].expired = True
            expire(self.client, task)
        # Somebody for everything that waits.
        if self.model.settling:
            self.settled()
        before, last = self.workers, self._worker(("a", "a2"), 3)
        self.workers = [last]
        for _ in range(3 * self.messages):
            self.look(0, 3)
            self.the_store_is_as_the_model()
            if not last.running:
                break
            self.finish(0, [(0, "done"), (0, "done")], 0, "no")
        assert not self.model.entries
        assert not self.owed
        for me in (*before, last):
            me.caller.leave()
        store = peek(self.client)
        check(store)
        assert not store.records
        # A killed worker could not say goodbye.
        assert store.meta.keys() <= {"birth", "ticket", "settling", *(f"park:{name}" for name in self.killed)}

    # -- how it is done ------------------------------------------------------------------------------------------

    def _worker(self, queues: tuple[str, ...], slots: int) -> Worker:
        self.born += 1
        me = Worker(Caller(self.client, f"{self.born:08x}", *queues), slots)
        self._declare(me, "")
        return me

    def _declare(self, me: Worker, known: str) -> None:
        limits = [Limit(*item) for item in self.declared.items()]
        me.birth = me.caller.declare(*limits, known=known)
        self.model.declare(known, me.birth, limits)
        if known not in ("", me.birth):
            # Whether a worker that comes back later still makes it settle is a matter of the server's clock.
            assert self.client.hexists(META, "settling") or not self.model.settling
            self.model.settling = bool(self.client.hexists(META, "settling"))

    @property
    def connected(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.unheard is None]

    def _one_of(self, things: Sequence[T], pick: int) -> T:
        return things[pick % len(things)]

    def _deliver(self, me: Worker, what: Delivery, pick: int, direct: bool, claims: int, lost: Lost) -> None:
        before = self.attempts.get(what.task, what)
        self.attempts[what.task] = max(before, what, key=lambda delivery: delivery.attempt)
        self.messages += 1
        message = f"{what.task}#{what.attempt}#{self.messages}".encode()
        limit = Limit(what.limit, self.declared[what.limit])
        held = Held(what.task, me.caller.nonce(), limit, what.attempt)
        parcel = Parcel(what.task, limit, self._one_of(me.caller.queues, pick), message, what.attempt)
        me.entering.append(Entering(held, parcel))
        if not direct:
            self._exchange(me, Exchange(asked=me.entering[-1:]), claims, lost)

    def _exchange(self, me: Worker, exchange: Exchange, slots: int, lost: Lost) -> None:
        slots = min(slots, max(me.free, 0))
        if lost != "no":
            me.unheard = exchange
            me.entering = [entering for entering in me.entering if entering not in exchange.asked]
        if lost == "call":
            return
        touched = [entry.limit for entry in map(self._released, exchange.released) if entry]
        touched += [limit for _, limit in self.model.reap(REAPED_BY_EXCHANGE)]
        expected = [self.model.admit(entering.held, me.caller.queues) for entering in exchange.asked]
        reply = me.caller.exchange(slots, released=exchange.released, asked=[e.held for e in exchange.asked])
        assert list(reply.answers) == expected
        refused = [entering for entering, answer in zip(exchange.asked, expected, strict=True) if answer not in GRANTED]
        touched += [entering.held.limit.name for entering in refused]
        heard = lost == "no"
        if heard:
            me.ended += exchange.released
            for entering, answer in zip(exchange.asked, expected, strict=True):
                self._decided(me, entering, answer)
        self._granted(me, reply, slots + len(refused), touched, heard=heard)

    def _decided(self, me: Worker, entering: Entering, answer: Answer) -> None:
        if entering in me.entering:
            me.entering.remove(entering)
        if answer in GRANTED:
            me.running[entering.held.nonce] = entering.held
        elif answer == Answer.MUST_PARK:
            me.entering.append(entering)

    def _released(self, row: tuple[str, str, Outcome]) -> Entry | None:
        task, nonce, outcome = row
        entry = self.model.release(task, nonce, outcome)
        if entry and outcome in {"done", "again"}:
            self.owed.pop(self.carried.get(nonce, b""), None)
            if outcome == "done":
                done = [m for m, (of, attempt) in self.owed.items() if of == task and attempt <= entry.attempt]
                for message in done:
                    del self.owed[message]
        return entry

    def _park(self, me: Worker, parcels: list[Parcel], slots: int, *, heard: bool = True) -> None:
        again = self.model.calls.get(me.caller.name) == me.calls
        if not again:
            for parcel in parcels:
                if self.model.park(parcel):
                    # It takes the place of an older attempt.
                    older = [m for m, (of, n) in self.owed.items() if of == parcel.task and n < parcel.attempt]
                    held = self.model.entries[parcel.task]
                    for message in older:
                        if message != held.message:
                            del self.owed[message]
                    self.owed[parcel.message] = parcel.task, parcel.attempt
            self.model.calls[me.caller.name] = me.calls
        reply = me.caller.park(*parcels, slots=slots, number=me.calls)
        assert reply.answers == (0 if again else 1,)
        touched = [] if again else [parcel.limit.name for parcel in parcels]
        self._granted(me, reply, slots, touched, heard=heard)

    def _granted(
        self,
        me: Worker,
        reply: Reply,
        slots: int,
        touched: list[str],
        *,
        heard: bool = True,
        look: bool = False,
        watched: bool = False,
    ) -> None:
        queues = me.caller.queues
        assert len(reply.grants) <= slots
        for grant in reply.grants:
            assert grant.limit in touched
            if look:
                assert grant.task_id == self._oldest(queues)
            self.model.resume(grant, queues)
            self.carried[grant.nonce] = grant.message
            if heard:
                limit = Limit(grant.limit, self.declared[grant.limit])
                me.running[grant.nonce] = Held(grant.task_id, grant.nonce, limit, grant.attempt)
        turns = {limit: self.model.turn(limit, queues) for limit in touched if self.model.free(limit) > 0}
        left_out = [turn.task for turn in turns.values() if turn.task]
        assert not left_out or len(reply.grants) == slots, f"{left_out} could have started"
        assert reply.more == bool(left_out)
        # Whoever looks looks again when the next lease ends that somebody waits for.
        assert bool(reply.wait) == (watched or any(turn.wait for turn in turns.values()))
        assert set(reply.emptied) == {limit for limit, turn in turns.items() if turn == Turn()}

    def _oldest(self, queues: tuple[str, ...]) -> str | None:
        turns = [self.model.turn(limit, queues).task for limit in LIMITS if self.model.free(limit) > 0]
        return min((task for task in turns if task), key=lambda task: self.model.entries[task].ticket, default=None)

    def _stop_time(self, store: Snapshot) -> None:
        """Time does not pass by itself here: an offer stands until `time_passes`, and so on."""
        later = f"{store.now + 3_600_000:.0f}"
        for limit, queue in store.offers.keys() - self.model.passed:
            pass_ms = store.offers[limit, queue].partition(" ")[2]
            self.client.hset(META, f"offer:{limit}\0{queue}", f"{later} {pass_ms}")
        if self.model.settling:
            self.client.hset(META, "settling", later)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # finding the smallest failing sequence takes minutes
def test_any_sequence_of_calls_leaves_the_store_as_the_rules_say(redis: Redis) -> None:
    """Limits, order, twins, hand-over and put-back hold whatever the workers, the broker and the server do."""

    class OnThisServer(StoreMachine):
        client = redis

    run_machine(OnThisServer, examples=120, steps=50, random_steps=100)
