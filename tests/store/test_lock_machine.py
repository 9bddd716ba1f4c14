"""Check the invariants of identity locks under any sequence of calls.

``HYPOTHESIS_EXAMPLES=5000`` runs that many random sequences; without it the same few run every time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import ClassVar, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from redis import Redis

from celery_throttle.core.dedup import LockPlan, LockUntil, OnConflict
from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange_reply import Answer
from celery_throttle.store.identity_locks import TAKEN
from tests.store.lock_caller import LockCaller, Started, end_lease, end_lock, plan_of
from tests.store.peek import KEY, Snapshot, check, peek
from tests.support.machines import one_of, run_machine

GPU = Limit("gpu", 1)
IDENTITIES = ("same", "other")
SLOTS = 8

picks = st.integers(0, 9)
outcomes = st.sampled_from(("done", "done", "failed", "retry", "ignored", "again", "return", "requeue"))
untils: st.SearchStrategy[tuple[LockUntil, float]] = st.sampled_from(
    (("finished", 0.0), ("finished", 0.0), ("finished", 600.0), ("started", 0.0), ("expires", 0.0))
)
conflicts: st.SearchStrategy[OnConflict] = st.sampled_from(
    ("return_existing", "return_existing", "raise", "skip", "replace", "keep_last", "keep_last")
)


class Message(NamedTuple):
    """The messages of a task at the broker."""

    task: str
    plan: LockPlan
    limit: Limit | None
    queue: int
    attempt: int = 0


class LockMachine(RuleBasedStateMachine):
    """Publishers, a broker and two workers; the second one can start tasks of both queues."""

    client: ClassVar[Redis]

    def __init__(self) -> None:
        super().__init__()
        self.client.flushall()
        self.callers = (LockCaller(self.client, "aaaaaaaa", "a"), LockCaller(self.client, "bbbbbbbb", "a", "b"))
        self.policies: dict[str, tuple[LockUntil, float]] = {}
        self.published = 0
        #: messages that the broker has not delivered
        self.broker: list[Message] = []
        #: as it was delivered last
        self.messages: dict[str, Message] = {}
        self.running: list[Started] = []
        #: whose lease has ended; they do not know it
        self.late: list[Started] = []
        self.last_token = 0
        #: had their lock taken away while they ran
        self.unlocked: set[str] = set()
        #: tasks that were due an outcome
        self.outcomes: set[str] = set()
        #: tasks that wait for an outcome which is there
        self.owed: set[str] = set()
        #: the identities whose lock the last call may have freed
        self.freed: set[str] = set()
        self.before: Snapshot = peek(self.client)

    @initialize(first=untils, second=untils)
    def policies_are(self, first: tuple[LockUntil, float], second: tuple[LockUntil, float]) -> None:
        """Choose for each published task: it belongs to its arguments, the action on conflict to the call."""
        self.policies = dict(zip(IDENTITIES, (first, second), strict=True))

    # -- publishers and the broker ------------------------------------------------------------------------------

    @rule(
        identity=st.sampled_from(IDENTITIES),
        conflict=conflicts,
        limited=st.booleans(),
        queue=st.integers(0, 1),
        how=st.sampled_from(("claim", "claim", "claim", "awaited", "unchecked")),
        at_once=st.booleans(),
    )
    def publish(self, identity: str, conflict: OnConflict, limited: bool, queue: int, how: str, at_once: bool) -> None:
        until, remember = self.policies[identity]
        if conflict in {"replace", "keep_last"} and (remember or until == "expires"):
            conflict = "return_existing"
        if conflict == "keep_last" and until == "started":
            conflict = "replace"
        plan = plan_of(identity, lock_until=until, on_conflict=conflict, remember=remember)
        task = f"t{self.published}"
        self.published += 1
        me = self.callers[0]
        if how != "unchecked":
            answer, other, claim = me.claim(task, plan, awaited=how == "awaited" and conflict != "raise")
            self.freed = {identity}  # a queued one may be replaced; one that runs never is, see `nobody_else_frees`
            if answer == TAKEN:
                assert other
                if how != "awaited":
                    return
            plan = plan_of(identity, lock_until=until, on_conflict=conflict, remember=remember)
            plan = type(plan)(identity, plan.dedup, claim, other if answer == TAKEN else "")
        self.broker.append(Message(task, plan, GPU if limited else None, queue))
        if at_once:
            self._deliver(len(self.broker) - 1)

    @precondition(lambda self: self.broker)
    @rule(pick=picks)
    def deliver(self, pick: int) -> None:
        self._deliver(pick % len(self.broker))

    @precondition(lambda self: self.messages)
    @rule(pick=picks)
    def deliver_twice(self, pick: int) -> None:
        """Let the broker deliver a message once more."""
        message = one_of(list(self.messages.values()), -1 - pick)
        self.broker.append(message)
        self._deliver(len(self.broker) - 1)

    @precondition(lambda self: self.broker)
    @rule(pick=picks)
    def give_up(self, pick: int) -> None:
        """It is revoked, and that is noticed when it is delivered."""
        message = self.broker.pop(pick % len(self.broker))
        self.callers[0].give_up(message.plan.identity, message.task)

    # -- workers ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.running)
    @rule(pick=picks, outcome=outcomes, slots=st.integers(0, 2), who=st.integers(0, 1))
    def end(self, pick: int, outcome: str, slots: int, who: int) -> None:
        started = one_of(self.running, pick)
        if started.verdict != "run" and outcome in {"failed", "retry"}:
            outcome = "done"
        self._end(started, outcome, slots, self.callers[who])

    @precondition(lambda self: self.late)
    @rule(pick=picks, outcome=outcomes)
    def end_late(self, pick: int, outcome: str) -> None:
        """A task ends whose lease ended long ago."""
        self._end(one_of(self.late, pick), outcome, 0, self.callers[0])

    @precondition(lambda self: self.running)
    @rule(pick=picks, both=st.booleans())
    def lease_ends(self, pick: int, both: bool) -> None:
        """Its worker is gone, or silent for too long; the lock may last a little longer."""
        started = one_of(self.running, pick)
        self.running.remove(started)
        self.late.append(started)
        end_lease(self.client, started, lock=both)
        self.freed = {started_identity(started)}
        if peek(self.client).records.get(started.task, None) is None:
            return
        if started.task not in self._stored():
            self.broker.append(self.messages[started.task])  # not acknowledged, so it comes again

    @precondition(lambda self: self.late)
    @rule(pick=picks)
    def renew_late(self, pick: int) -> None:
        """Its worker is there after all."""
        started = one_of(self.late, pick)
        self._renew(started)

    @precondition(lambda self: self.running)
    @rule()
    def renew(self) -> None:
        for started in list(self.running):
            self._renew(started)

    @rule(who=st.integers(0, 1), slots=st.integers(0, 2))
    def look(self, who: int, slots: int) -> None:
        self._reaped()
        self._started(self.callers[who].look_once(slots))

    @rule()
    def reap(self) -> None:
        self._reaped()
        self.callers[0].reap()

    @precondition(lambda self: self.messages)
    @rule(pick=picks)
    def withdraw(self, pick: int) -> None:
        """A parked task is revoked."""
        task = one_of(list(self.messages), -1 - pick)
        self._reaped()
        for each in self.callers[0].withdraw(task):
            assert each.task == task
            self.owed.discard(task)

    # -- operators, time and bad luck ---------------------------------------------------------------------------

    @rule(identity=st.sampled_from(IDENTITIES))
    def unlock(self, identity: str) -> None:
        self.unlocked |= {started.nonce for started in self._holders(identity)}
        self.callers[0].unlock(identity)
        self.freed = {identity}

    @rule(identity=st.sampled_from(IDENTITIES))
    def lock_ends(self, identity: str) -> None:
        """The time of one that waits, or is remembered, has passed."""
        lock = peek(self.client).live_lock(identity)
        holds = {started.task for started in self._holders(identity)}
        if lock and lock["state"] in {"queued", "done", "failed"} and lock["task"] not in holds:
            end_lock(self.client, identity)
            self.freed = {identity}

    @precondition(lambda self: self.published > 3)
    @rule(back=st.booleans(), lucky=picks)
    def forget(self, back: bool, lucky: int) -> None:
        """Lose everything in the store, seldom; running tasks put themselves back, unless others were faster."""
        if lucky:
            return
        self.client.flushall()
        self.owed.clear()
        self.freed = set(IDENTITIES)
        self.late += [started for started in self.running if not back]
        self.running = [started for started in self.running if back]
        if back:
            self.renew()
        else:
            self.unlocked |= {started.nonce for started in self.late}

    # -- always -------------------------------------------------------------------------------------------------

    @invariant()
    def indexes_agree(self) -> None:
        check(peek(self.client))

    @invariant()
    def permits_are_not_exceeded(self) -> None:
        assert peek(self.client).used.get("gpu", 0) <= (GPU.permits or 0)

    @invariant()
    def one_at_a_time(self) -> None:
        """Of each identity, except tasks whose lock was taken away; `started` only checks that one begins at a time."""
        store = peek(self.client)
        for identity in IDENTITIES:
            if self.policies and self.policies[identity][0] != "started":
                holders = [started for started in self._holders(identity) if started.nonce not in self.unlocked]
                assert len(holders) <= 1, f"{[each.task for each in holders]} run at the same time"
                for started in holders:
                    lock = store.live_lock(identity)
                    assert lock, f"{started.task} runs without its lock"
                    assert lock["task"] == started.task

    @invariant()
    def nobody_else_frees(self) -> None:
        """A task that runs keeps its lock until its end, the end of its lease, or a forced release."""
        store = peek(self.client)
        for identity in IDENTITIES:
            before, now = self.before.live_lock(identity), store.live_lock(identity)
            if before and before["state"] == "running" and identity not in self.freed:
                assert now, f"the lock of {before['task']} is gone"
                assert (now["task"], now["nonce"]) == (before["task"], before["nonce"])
        self.before, self.freed = store, set()

    def teardown(self) -> None:
        """When everything has come to its end, nothing waits, and nothing is left."""
        if not self.policies:
            return
        me = self.callers[1]
        for _ in range(10 * self.published + 10):
            if self.broker:
                self._deliver(0)
            elif self.running:
                self._end(self.running[0], "done", SLOTS, me)
            else:
                self._reaped()
                self._started(me.look_once(SLOTS))
                if not self.broker and not self.running:
                    break
        store = peek(self.client)
        assert not store.parked, "a task waits, nothing runs"
        assert not store.records
        assert not store.used
        left = {identity: lock for identity, lock in store.locks.items() if store.live_lock(identity)}
        assert {lock["state"] for lock in left.values()} <= {"done", "failed", "started"} | self._never_came(left), left
        for name in peek(self.client).sets["ends"]:
            self.client.zadd(KEY["ends"], {name: 1})
        me.reap()
        store = peek(self.client)
        assert not store.hashes["locks"]
        assert not store.awaited
        assert not store.sets["ends"]

    # -- helpers ------------------------------------------------------------------------------------------------

    def _never_came(self, left: Collection[str]) -> set[str]:
        """Until it expires, a lock stays though its task was interrupted."""
        return {"queued"} if any(self.policies[identity][0] == "expires" for identity in left) else set()

    def _holders(self, identity: str) -> Iterator[Started]:
        """Return the runs that may go on, by the answers of the store."""
        found = (started for started in self.running if started.verdict == "run")
        return (started for started in found if started_identity(started) == identity)

    def _stored(self) -> frozenset[str]:
        return frozenset(peek(self.client).messages)

    def _deliver(self, at: int) -> None:
        message = self.broker.pop(at)
        task, plan, limit = message.task, message.plan, message.limit
        self.messages[task] = message
        me = self.callers[message.queue]
        self._reaped()
        answer, started, others = me.ask_once(task, plan, limit, attempt=message.attempt)
        self._started(others)
        if answer > max(Answer):
            self._started((started,))
        elif answer == Answer.MUST_PARK:
            queue = me.queues[-1]
            self._started(me.put_once(task, plan, limit, attempt=message.attempt, slots=1, queue=queue))

    def _started(self, those: Sequence[Started]) -> None:
        for started in those:
            if started.verdict == "run":
                assert started.task not in self.owed, f"{started.task} runs though its first has ended"
                assert started.token > self.last_token
                self.last_token = started.token
            else:
                assert started.token == 0
            if started.verdict == "conclude":
                assert started.first in self.outcomes, f"{started.first} has no outcome"
            self.owed.discard(started.task)
            self.running.append(started)

    def _end(self, started: Started, outcome: str, slots: int, me: LockCaller) -> None:
        (self.running if started in self.running else self.late).remove(started)
        self.freed = {started_identity(started)}
        held = peek(self.client).records.get(started.task)
        mine = held is not None and held.nonce == started.nonce
        stored = started.task in self._stored()
        if mine and outcome in {"done", "failed"} and started.verdict == "run":
            self.outcomes.add(started.task)
            self.owed |= self._owed_by(started)
        elif held and outcome == "done" and started.verdict == "run":
            self.outcomes.add(started.task)  # of a task that another delivery of it has, which counts for that too
        if mine and outcome == "retry":
            message = self.messages[started.task]
            self.broker.append(message._replace(attempt=started.attempt + 1))
        elif mine and not stored and outcome in {"return", "requeue", "again"}:
            self.broker.append(self.messages[started.task])
        self._reaped()
        self._started(me.end(started, outcome, slots=slots))

    def _owed_by(self, started: Started) -> set[str]:
        """Return its followers, unless another delivery of it goes on."""
        store, identity = peek(self.client), started_identity(started)
        if started.task in store.seconds:
            return set()
        return {task for task, record in store.parked.items() if record.lane.startswith(f"follow:{identity}:")}

    def _renew(self, started: Started) -> None:
        answer = self.callers[0].renew_once(started)
        if answer in (1, 2) and started in self.late:
            self.late.remove(started)
            self.running.append(started)
        elif answer == 0 and started in self.running:
            self.running.remove(started)
            self.late.append(started)

    def _reaped(self) -> None:
        """Take the permits of ended leases with the next call."""
        self.freed |= {started_identity(started) for started in self.late}


def started_identity(started: Started) -> str:
    """Which lock it is about."""
    spec = started.held.lock
    return "same" if '"same"' in spec else "other"


@pytest.mark.slow
@pytest.mark.timeout(1800)  # finding the smallest failing sequence takes minutes
def test_any_sequence_of_calls_keeps_the_promises_of_a_lock(redis: Redis) -> None:
    """One at a time, tokens that grow, no task stuck, nothing left, for any behaviour of workers and server."""

    class OnThisServer(LockMachine):
        client = redis

    run_machine(OnThisServer, examples=25, steps=30, random_steps=60)
