"""A worker and a publisher as the store's identity locks see them, and what the store keeps of these locks."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from celery_throttle.core.dedup import Dedup, LockPlan, with_fencing_token
from celery_throttle.core.limits import Limit
from celery_throttle.store import replies
from celery_throttle.store.scripts import execute
from tests.store.caller import KEYS, Caller, message_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis

    from celery_throttle.core.dedup import OnConflict, Until
    from celery_throttle.store.replies import Claimed, Grant, Locked, Reply

LIMITS, USED, LEASES, RECORDS, PARKED, MESSAGES, META, LOCKS, LOCK_ENDS = KEYS.all


def plan_of(
    identity: str = "same",
    *,
    until: Until = "finished",
    on_conflict: OnConflict = "return_existing",
    remember: float = 0.0,
    lock_ttl: float = 3600.0,
) -> LockPlan:
    """What a task does with its lock."""
    return LockPlan(identity, Dedup(None, until, on_conflict, remember, lock_ttl))


class Started(NamedTuple):
    """A task that was handed to a worker, whatever it has to do with it."""

    task: str
    nonce: str
    limit: Limit | None
    attempt: int
    verdict: str
    first: str
    token: int
    spec: str
    message: bytes = b""

    @classmethod
    def of(cls, grant: Grant) -> Started:
        assert grant.lock
        lock, limit = grant.lock, Limit(grant.limit, 1) if grant.limit else None
        return cls(
            grant.task_id,
            grant.nonce,
            limit,
            grant.attempt,
            lock.verdict,
            lock.first,
            lock.fencing_token,
            lock.spec,
            grant.message,
        )


class LockCaller(Caller):
    """One worker, which also publishes; a permit and a lock are asked for and given back together."""

    def claim(self, task: str, plan: LockPlan, *, least: float = 3600.0, awaited: bool = False) -> Claimed:
        """Publish."""
        return replies.claimed(execute(self.client, self.store.claim(task, plan.spec, least, awaited=awaited)))

    def publish(self, task: str, plan: LockPlan, *, awaited: bool = False) -> LockPlan:
        """Claim as a publisher does that sends the message whatever the answer is; what its header will say."""
        answer, other, claim = self.claim(task, plan, awaited=awaited)
        return replace(plan, claim=claim, first=other if answer == replies.TAKEN else "")

    def ask_once(
        self,
        task: str,
        plan: LockPlan,
        limit: Limit | None = None,
        *,
        attempt: int = 0,
        slots: int = 0,
        released: Started | None = None,
        outcome: str = "done",
    ) -> tuple[int, Started, tuple[Started, ...]]:
        """Arrive at the gate: the answer, what would run, and what else was started."""
        nonce = self.nonce()
        row = (task, nonce, *_columns(limit), attempt, plan.spec, "")
        back = [(released.task, released.nonce, outcome)] if released else []
        reply = replies.reply(execute(self.client, self.store.exchange(self.nonce(), slots, back, asked=[row])))
        token = reply.answers[0]
        spec = with_fencing_token(plan.spec, token) if token > 3 else plan.spec
        return token, Started(task, nonce, limit, attempt, "run", "", token, spec), started_of(reply)

    def start(self, task: str, plan: LockPlan, limit: Limit | None = None, *, attempt: int = 0) -> Started:
        """Arrive, and start at once."""
        answer, started, _ = self.ask_once(task, plan, limit, attempt=attempt)
        assert answer > 3, f"{task} had to be parked"
        return started

    def put_once(
        self,
        task: str,
        plan: LockPlan,
        limit: Limit | None = None,
        *,
        attempt: int = 0,
        slots: int = 0,
        queue: str | None = None,
    ) -> tuple[Started, ...]:
        """Set it aside; what is started in the slots."""
        message = message_of(task, attempt)
        row = (task, *_columns(limit), attempt, queue or self.queues[0], message, plan.spec, "")
        call = self.store.park(self.nonce(), slots, self.name, next(self._numbers), [row])
        return started_of(replies.reply(execute(self.client, call)))

    def arrive(
        self, task: str, plan: LockPlan, limit: Limit | None = None, *, attempt: int = 0, slots: int = 0
    ) -> tuple[Started, ...]:
        """Arrive at the gate, and be parked if refused; everything that was started."""
        answer, started, others = self.ask_once(task, plan, limit, attempt=attempt)
        if answer > 3:
            return (started, *others)
        if answer == replies.Answer.MUST_PARK:
            return (*others, *self.put_once(task, plan, limit, attempt=attempt, slots=slots))
        return others

    def end(self, started: Started, outcome: str = "done", *, slots: int = 0) -> tuple[Started, ...]:
        """Give back permit and lock; what is started in the slots."""
        reply = self.exchange(slots, released=[(started.task, started.nonce, outcome)])
        return started_of(reply)

    def look_once(self, slots: int = 1) -> tuple[Started, ...]:
        return started_of(self.look(slots))

    def renew_once(self, started: Started) -> int:
        """The answer: 1 renewed, 2 put back, 0 lost."""
        row = (started.task, started.nonce, *_columns(started.limit), started.attempt, started.spec, "")
        (answer,) = cast("list[int]", execute(self.client, self.store.renew([row])))
        return answer

    def succeeded(self, started: Started, identity: str, remember: float) -> int:
        call = self.store.succeeded(identity, started.task, started.token, remember)
        return cast("int", execute(self.client, call))

    def give_up(self, identity: str, task: str) -> int:
        return cast("int", execute(self.client, self.store.give_up(identity, task)))

    def unlock(self, identity: str, task: str = "") -> int:
        return cast("int", execute(self.client, self.store.unlock(identity, task)))

    def locked(self, identity: str = "same") -> Locked | None:
        return replies.locked(execute(self.client, self.store.locked(identity)))


def _columns(limit: Limit | None) -> tuple[str, str]:
    return (limit.name, str(limit.permits)) if limit else ("", "1")


def started_of(reply: Reply) -> tuple[Started, ...]:
    """What a reply says to start."""
    return tuple(Started.of(grant) for grant in reply.grants)


class LockRecord(NamedTuple):
    """What the store knows of one delivery, and of its lock."""

    state: str
    nonce: str
    limit: str
    attempt: int
    ticket: str
    queue: str
    deliveries: int
    spec: tuple[Any, ...] = ()

    @property
    def verdict(self) -> str:
        return cast("str", self.spec[6]) if self.spec else "run"

    @property
    def identity(self) -> str:
        return cast("str", self.spec[0]) if self.spec else ""

    @property
    def line(self) -> str:
        """Which line it is in while it is parked."""
        if self.verdict == "run":
            return self.limit
        return {"follow": "\2" + self.identity, "next": "\3" + self.identity}.get(self.verdict, "")


class Lock(NamedTuple):
    """An identity lock as the store keeps it."""

    state: str
    task: str
    claim: str
    nonce: str
    fence: str
    since: int
    next: str
    next_claim: str
    floor: int
    awaited: int


@dataclass(frozen=True)
class LockSnapshot:
    """What concerns locks, at one instant."""

    records: dict[str, LockRecord]
    twins: dict[str, LockRecord]
    used: dict[str, int]
    leases: dict[str, float]
    line: frozenset[str]
    messages: frozenset[str]
    locks: dict[str, Lock]
    #: what is kept for duplicates: the fields that begin with a control character
    notes: dict[str, bytes]
    offers: frozenset[str]
    ends: dict[str, float]
    now: float

    def live(self, identity: str) -> Lock | None:
        """The lock, unless its time has passed."""
        return self.locks.get(identity) if self.ends.get(identity, 0) > self.now else None

    def holders(self, identity: str) -> list[str]:
        """Who runs, by the store."""
        found = self.records.items()
        return [t for t, r in found if r.state == "H" and r.identity == identity and r.verdict == "run"]


def peek_locks(client: Redis) -> LockSnapshot:
    """Read the store while nobody writes to it."""
    with client.pipeline(transaction=False) as pipe:
        pipe.time()
        for name in (RECORDS, USED, MESSAGES, LOCKS, META):
            pipe.hgetall(name)
        for name in (LEASES, PARKED, LOCK_ENDS):
            pipe.zrange(name, 0, -1, withscores=True)
        (seconds, microseconds), packed, used, messages, locks, meta, leases, parked, ends = pipe.execute()
    records = {field.decode(): _record(value) for field, value in packed.items()}
    fields = {field.decode(): value for field, value in locks.items()}
    return LockSnapshot(
        records={task: record for task, record in records.items() if task[0] != "\0"},
        twins={task[1:]: record for task, record in records.items() if task[0] == "\0"},
        used={name.decode(): int(value) for name, value in used.items()},
        leases={task.decode(): until for task, until in leases},
        line=frozenset(member.decode() for member, _ in parked),
        messages=frozenset(task.decode() for task in messages),
        locks={name: Lock(*json.loads(value)) for name, value in fields.items() if name[0] >= " "},
        notes={name: value for name, value in fields.items() if name[0] < " "},
        offers=frozenset(name.decode() for name in meta if name.startswith(b"offer:")),
        ends={name.decode(): until for name, until in ends},
        now=seconds * 1000 + microseconds // 1000,
    )


def _record(packed: bytes) -> LockRecord:
    fields = json.loads(packed)
    return LockRecord(*fields[:7], *map(tuple, fields[7:]))


def check_locks(store: LockSnapshot) -> None:
    """Whether all the indexes say the same; true at any instant."""
    held = {task: record for task, record in store.records.items() if record.state == "H"}
    parked = {task: record for task, record in store.records.items() if record.state == "P"}
    assert held.keys() | parked.keys() == store.records.keys()
    assert held.keys() == store.leases.keys()
    counted = [record.limit for record in held.values() if record.limit and record.line == record.limit]
    assert store.used == {limit: counted.count(limit) for limit in counted}
    assert store.line == {f"{r.line}\0{r.queue}\0{r.ticket}{task}" for task, r in parked.items()}
    assert parked.keys() <= store.messages
    assert store.locks.keys() | store.notes.keys() == store.ends.keys()


def end_lease(client: Redis, started: Started, *, lock: bool = True) -> None:
    """Its worker was silent for a whole lease: the lease has ended, and with it the lock, which lasts as long."""
    client.zadd(LEASES, {started.task: 1}, xx=True)
    store = peek_locks(client)
    record = store.records.get(started.task)
    found = store.locks.get(record.identity) if record and record.spec else None
    if lock and found and record and found.task == started.task and found.state in {"R", "S"}:
        client.zadd(LOCK_ENDS, {record.identity: max(1, found.floor)}, xx=True)


def end_lock(client: Redis, identity: str = "same") -> None:
    """The time of a lock has passed."""
    client.zadd(LOCK_ENDS, {identity: 1}, xx=True)


def until(condition: Callable[[], bool], timeout: float = 5.0) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not become so"
        time.sleep(0.005)
