"""Check the invariants under any sequence of calls, for tasks with several limits, costs and keys.

``HYPOTHESIS_EXAMPLES=2000`` runs that many random sequences; without it the same few run every time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import Needs
from celery_throttle.store.exchange import Arrival
from celery_throttle.store.exchange_reply import Answer, Reply
from tests.store.caller import ENDS, ended, held_by
from tests.store.hints import Hints
from tests.store.peek import KEY, Record, Snapshot, check, expire, let_come_due, pass_over, peek, startable
from tests.store.terms_caller import TermsCaller, terms
from tests.support.machines import one_of, run_machine

QUEUES = ("x", "y")
OUTCOMES = ("done", "done", "failed", "retry", "ignored", "again", "never", "requeue", "return", "lost")
MANY = 50

picks = st.integers(0, 9)
subsets = st.sampled_from([(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
costs = st.sampled_from((1, 1, 1, 2, 3))
slots = st.integers(0, 2)


@dataclass
class Worker:
    """A worker and its runs, by nonce."""

    caller: TermsCaller
    running: dict[str, Arrival] = field(default_factory=dict)


class TermsMachine(RuleBasedStateMachine):
    """Two workers with different queues on one store."""

    client: ClassVar[Redis]
    fair: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self.client.flushall()
        self.hints = Hints(self.client)
        #: whether a worker got a hint, or has seen itself, that there may be something to start
        self.told = False
        self.limits = [
            Limit("api", 3, fair_by="who" if self.fair else None),
            Limit("memory", 2),  # less than some tasks cost
            Limit("tenant", 2, key="who"),
        ]
        self.workers = [Worker(TermsCaller(self.client, f"{queue * 8}", queue)) for queue in QUEUES]
        self.helper = Worker(TermsCaller(self.client, "zzzzzzzz", *QUEUES))
        self.needs: dict[str, Needs] = {}
        self.stored: set[str] = set()
        self._between: Snapshot | None = None
        for worker in (*self.workers, self.helper):
            worker.caller.declare(*self.limits)

    @property
    def between(self) -> Snapshot:
        """Return the state of the store between two rules, for the preconditions of rules."""
        self._between = self._between or peek(self.client)
        return self._between

    # -- calls of the workers ------------------------------------------------------------------------------------------

    @rule(pick=picks, subset=subsets, cost=costs, who=st.sampled_from("ab"), hurried=st.booleans(), slots=slots)
    def deliver(self, pick: int, subset: tuple[int, ...], cost: int, who: str, hurried: bool, slots: int) -> None:
        """A task comes from the broker."""
        task = f"t{len(self.needs)}"
        each = terms(*(self.limits[place] for place in subset), cost=cost, start_deadline=600.0 if hurried else None)
        values = {"keys": {"tenant": who}, "fair": [who, 1]}
        self.needs[task] = each.needs(values)
        self._deliver(one_of(self.workers, pick), task, slots)

    @precondition(lambda self: self.needs)
    @rule(pick=picks, which=picks, slots=slots)
    def deliver_again(self, pick: int, which: int, slots: int) -> None:
        """The broker delivers one of the last few for the second time."""
        task = one_of(list(self.needs), -1 - which)
        self._deliver(one_of(self.workers, pick), task, slots)

    @precondition(lambda self: any(worker.running for worker in self.workers))
    @rule(pick=picks, which=picks, outcome=st.sampled_from(OUTCOMES), slots=slots)
    def end(self, pick: int, which: int, outcome: str, slots: int) -> None:
        """A run ends, however."""
        me = one_of([worker for worker in self.workers if worker.running], pick)
        self._end(me, one_of(list(me.running), which), outcome, slots)

    @rule(pick=picks, slots=slots)
    def look(self, pick: int, slots: int) -> None:
        me = one_of(self.workers, pick)
        self._heard(me, me.caller.look(slots))

    @rule()
    def serve(self) -> None:
        """Give a worker slots for everything: each task that could start does, after a hint to a worker."""
        told = self.told or bool(self.hints.take())
        for _ in range(MANY):
            reply = self.helper.caller.look(MANY)
            assert told or not reply.grants, "no worker got a hint that they could start"
            self._heard(self.helper, reply)
            if not reply.grants and not reply.more:
                break
        else:
            pytest.fail("there is no end to it")
        self.told = False
        self.hints.take()
        store = peek(self.client)
        waiting = list(store.parked.values())
        assert all(record.takes for record in waiting), "one that has only to be answered waits"
        left_out = [record for record in waiting if self._is_next(record, waiting) and self._fits(store, record)]
        assert not left_out

    @precondition(lambda self: self.helper.running)
    @rule(which=picks, outcome=st.sampled_from(OUTCOMES), slots=slots)
    def helper_ends(self, which: int, outcome: str, slots: int) -> None:
        self._end(self.helper, one_of(list(self.helper.running), which), outcome, slots)

    # -- events elsewhere ----------------------------------------------------------------------------------------------

    @precondition(lambda self: bool(self.between.leases or self.between.due("task")))
    @rule(pick=picks, reaped=st.booleans())
    def time_is_over(self, pick: int, reaped: bool) -> None:
        """A holder was silent for too long, or one may not wait any longer; beat comes by, or not yet."""
        store = peek(self.client)
        task = one_of(sorted((*store.leases, *store.due("task"))), pick)
        expire(self.client, task)
        let_come_due(self.client, "task", task)
        if reaped:
            self.helper.caller.reap()
        self.told = True  # the last caller that looked has the time of that

    @precondition(lambda self: bool(self.between.records))
    @rule(pick=picks)
    def withdraw(self, pick: int) -> None:
        """One is revoked while it waits."""
        task = one_of(sorted(peek(self.client).records), pick)
        self.helper.caller.withdraw(task)

    @precondition(lambda self: bool(self.between.offered or self.between.passed))
    @rule(pick=picks)
    def time_passes(self, pick: int) -> None:
        """A queue did not take its turn in time, or has been passed over for long enough."""
        store = peek(self.client)
        lane = one_of(sorted((*store.offered, *store.passed)), pick)
        if lane in store.passed:
            let_come_due(self.client, "lane", lane)
        else:
            pass_over(self.client, store.lanes[lane]["at"], lane.partition("\0")[2])
        self.told = True  # the tasks that it blocked ask again by then

    @rule(sure=st.sampled_from((False, False, False, True)))
    def forget_everything(self, sure: bool) -> None:
        """Empty the server; running tasks put themselves back while there is room."""
        if not sure:
            return
        self.client.flushall()
        for me in (*self.workers, self.helper):
            me.caller.declare(*self.limits)
            for run in me.running.values():
                me.caller.renew(run)

    # -- invariants ----------------------------------------------------------------------------------------------------

    @invariant()
    def all_indexes_agree(self) -> None:
        store = peek(self.client)
        check(store)
        permits = {limit.name: limit.permits or 0 for limit in self.limits}
        assert not startable(store, permits), "there is room, and no index lists it"
        # Time does not pass by itself here: an offer stands until `time_passes`.
        for lane in store.offered:
            entry = {**store.lanes[lane], "offered": store.now + 3_600_000}
            self.client.hset(KEY["lanes"], lane, json.dumps(entry, separators=(",", ":")))
        self._between = None  # a rule was carried out

    @invariant()
    def no_limit_is_exceeded(self) -> None:
        store = peek(self.client)
        for pool, used in store.used.items():
            holders = store.holders(pool)
            assert used <= self._permits(pool) or len(holders) == 1, f"{pool!r}: {used}"

    def teardown(self) -> None:
        """Everything finishes, and nothing is left."""
        try:
            if sys.exc_info()[0] is None:
                self._finish()
        finally:
            self.hints.close()

    def _finish(self) -> None:
        for me in (*self.workers, self.helper):
            for nonce in list(me.running):
                self._end(me, nonce, "done", 0)
        expire(self.client, *(task for task, record in peek(self.client).records.items() if record.held))
        for _ in range(len(self.needs) * 3 + 3):
            self._heard(self.helper, self.helper.caller.look(MANY))
            self.all_indexes_agree()
            self.no_limit_is_exceeded()
            waiting = peek(self.client).parked
            if not self.helper.running:
                assert not waiting, "nothing runs, and they wait"
                break
            for nonce in list(self.helper.running):
                self._end(self.helper, nonce, "done", 0)
        assert not peek(self.client).parked
        store = peek(self.client)
        left = {name for name, content in (store.hashes | store.sets).items() if content}
        # The counts of turns, and the records of runs, expire by themselves.
        assert not store.records
        assert left <= {"limits", "meta", "workers", "ends", "turns", "records", "due"}

    # -- how it is done ------------------------------------------------------------------------------------------

    def _permits(self, pool: str) -> int:
        permits = next(limit.permits for limit in self.limits if limit.name == pool.partition("\x1f")[0])
        assert permits
        return permits

    def _fits(self, store: Snapshot, record: Record) -> bool:
        return all(
            store.used.get(pool, 0) + min(cost, self._permits(pool)) <= self._permits(pool)
            for pool, cost in record.needs
        )

    def _is_next(self, record: Record, waiting: Sequence[Record]) -> bool:
        """Return whether no waiting task that came before it, or at the same time, needs one of its permits."""
        needs = dict(record.needs).keys()
        before = [other for other in waiting if other is not record and other.ticket <= record.ticket]
        return not any(needs & dict(other.needs).keys() for other in before)

    def _deliver(self, me: Worker, task: str, slots: int) -> None:
        caller, needs = me.caller, self.needs[task]
        arrival = caller.arrival(task, needs)
        reply = caller.exchange(slots, asked=[arrival])
        self._heard(me, reply)
        (answer,) = reply.asked
        if answer == Answer.GRANTED:
            me.running[arrival.nonce] = arrival
        elif answer == Answer.MUST_PARK:
            self._heard(me, caller.put(task, needs, slots=slots))

    def _end(self, me: Worker, nonce: str, outcome: str, slots: int) -> None:
        run = me.running.pop(nonce)
        how = ENDS[outcome] if nonce in self.stored else outcome
        self._heard(me, me.caller.exchange(slots, ended=[ended(run, how)]))

    def _heard(self, me: Worker, reply: Reply) -> None:
        self.told = self.told or reply.more or reply.wait > 0
        for grant in reply.grants:
            me.running[grant.nonce] = held_by(grant)
            self.stored.add(grant.nonce)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # finding the smallest failing sequence takes minutes
@pytest.mark.parametrize("turns", [False, True], ids=["in order", "in turns"])
def test_several_limits_costs_and_keys(redis: Redis, turns: bool) -> None:
    """Caps hold, no task is left out, queues with a startable task get a hint, and everything finishes."""

    class OnThisServer(TermsMachine):
        client, fair = redis, turns

    run_machine(OnThisServer, examples=15, steps=40, random_steps=60)
