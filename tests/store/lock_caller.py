"""A worker and a publisher as the store's identity locks see them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import NamedTuple, cast

from redis import Redis

from celery_throttle.core.dedup import Dedup, LockPlan, LockUntil, OnConflict, fenced
from celery_throttle.core.facts import Facts
from celery_throttle.store.exchange import Arrival
from celery_throttle.store.exchange_reply import Answer, Grant, Reply
from celery_throttle.store.identity_locks import (
    CLAIMED,
    OURS,
    REPLACED,
    TAKEN,
    Claimed,
    Locked,
    read_claimed,
    read_locked,
)
from celery_throttle.store.scripts import execute
from tests.store.caller import Caller, What, held_by
from tests.store.peek import KEY, peek


def plan_of(
    identity: str = "same",
    *,
    lock_until: LockUntil = "finished",
    on_conflict: OnConflict = "return_existing",
    remember: float = 0.0,
    lock_ttl: float = 3600.0,
) -> LockPlan:
    """Return the plan of a task for its lock."""
    return LockPlan(identity, Dedup(None, lock_until, on_conflict, remember, lock_ttl))


PLAN = plan_of()
REPLACE = plan_of(on_conflict="replace")
KEEP_LAST = plan_of(on_conflict="keep_last")


class Started(NamedTuple):
    """A task that was handed to a worker: to run, or to get an outcome."""

    run: Arrival | Grant
    verdict: str
    first: str
    token: int

    @classmethod
    def of(cls, run: Arrival | Grant) -> Started:
        if isinstance(run, Arrival):
            return cls(run, "run", "", int(json.loads(run.lock).get("fence", 0)) if run.lock else 0)
        lock = run.lock
        return cls(run, lock.verdict, lock.first, lock.fencing_token) if lock else cls(run, "run", "", 0)

    @property
    def task(self) -> str:
        return self.run.task

    @property
    def nonce(self) -> str:
        return self.run.nonce

    @property
    def attempt(self) -> int:
        return self.run.attempt

    @property
    def held(self) -> Arrival:
        return held_by(self.run) if isinstance(self.run, Grant) else self.run


class LockCaller(Caller):
    """One worker, which also publishes; a permit and a lock are asked for and given back together."""

    def claim(self, task: str, plan: LockPlan, *, least: float = 3600.0, awaited: bool = False) -> Claimed:
        """Publish."""
        return read_claimed(execute(self.client, self.store.claim(task, plan.spec, least, awaited=awaited)))

    def sent(self, task: str, plan: LockPlan, *, least: float = 3600.0, is_retry: bool = False) -> int:
        """Confirm that the message of a claim was sent."""
        return cast(
            "int", execute(self.client, self.store.sent(plan.identity, task, plan.claim, least, is_retry=is_retry))
        )

    def publish(self, task: str, plan: LockPlan, *, awaited: bool = False, confirms: bool = True) -> LockPlan:
        """Claim and confirm as a publisher that ignores the answer does; return the header of the message."""
        answer, other, claim = self.claim(task, plan, awaited=awaited)
        if confirms and answer in (CLAIMED, OURS, REPLACED):
            self.sent(task, replace(plan, claim=claim), is_retry=answer == OURS)
        return replace(plan, claim=claim, first=other if answer == TAKEN else "")

    def ask_once(
        self, task: str, plan: LockPlan, what: What = None, *, attempt: int = 0, slots: int = 0
    ) -> tuple[int, Started, tuple[Started, ...]]:
        """Arrive at the gate; return the answer, the claim of this task, and the other tasks that were started."""
        arrival = self.arrival(task, what, attempt=attempt, lock=plan.spec)
        reply = self.exchange(slots, asked=[arrival])
        return reply.asked[0], Started.of(granted(arrival, reply.asked[0])), started_of(reply)

    def start(self, task: str, plan: LockPlan, what: What = None, *, attempt: int = 0) -> Started:
        """Arrive, and start at once."""
        answer, started, _ = self.ask_once(task, plan, what, attempt=attempt)
        assert answer > max(Answer), f"{task} had to be parked"
        return started

    def put_once(
        self, task: str, plan: LockPlan, what: What = None, *, attempt: int = 0, slots: int = 0, queue: str = ""
    ) -> tuple[Started, ...]:
        """Park it; return the tasks that are started in the slots."""
        return started_of(self.put(task, what, attempt=attempt, lock=plan.spec, queue=queue, slots=slots))

    def arrive(
        self, task: str, plan: LockPlan, what: What = None, *, attempt: int = 0, slots: int = 0
    ) -> tuple[Started, ...]:
        """Arrive at the gate, and be parked if refused; everything that was started."""
        answer, started, others = self.ask_once(task, plan, what, attempt=attempt)
        if answer > max(Answer):
            return (started, *others)
        if answer == Answer.MUST_PARK:
            return (*others, *self.put_once(task, plan, what, attempt=attempt, slots=slots))
        return others

    def end(self, started: Started, how: str | Facts = "done", *, slots: int = 0) -> tuple[Started, ...]:
        """Give back permit and lock; return the tasks that are started in the slots."""
        return started_of(self.release(started.run, how, slots=slots))

    def look_once(self, slots: int = 1) -> tuple[Started, ...]:
        return started_of(self.look(slots))

    def renew_once(self, started: Started) -> int:
        """The answer: 1 renewed, 2 put back, 0 lost, 3 it may have ended since."""
        return self.renew(started.held)[0]

    def succeeded(
        self, started: Started, identity: str, remember: float, *, token: int | None = None, lost: bool = False
    ) -> int:
        token = started.token if token is None else token
        call = self.store.succeeded(identity, started.task, token, remember, lost=lost)
        return cast("int", execute(self.client, call))

    def give_up(self, identity: str, task: str, first: str = "") -> int:
        return cast("int", execute(self.client, self.store.give_up(identity, task, first)))

    def unlock(self, identity: str, task: str = "", **signed: str) -> int:
        return cast("int", execute(self.client, self.store.unlock(identity, task, **signed)))

    def locked(self, identity: str = "same") -> Locked | None:
        return read_locked(execute(self.client, self.store.locked(identity)))


def granted(arrival: Arrival, answer: int) -> Arrival:
    """Return the run of a task that asked, with the token in the answer."""
    return arrival._replace(lock=fenced(arrival.lock, answer)[0]) if answer > max(Answer) else arrival


def token_of(run: Arrival | Grant) -> int:
    return Started.of(run).token


def started_of(reply: Reply) -> tuple[Started, ...]:
    """Return the tasks that a reply starts."""
    return tuple(Started.of(grant) for grant in reply.grants)


def end_lease(client: Redis, started: Started, *, lock: bool = True) -> None:
    """Its worker was silent for a whole lease: the lease has ended, and with it the lock, which lasts as long."""
    client.zadd(KEY["leases"], {started.task: 1}, xx=True)
    store = peek(client)
    record = store.records.get(started.task)
    found = store.locks.get(record.identity) if record else None
    if lock and found and record and found["task"] == started.task and found["state"] in {"running", "started"}:
        client.zadd(KEY["ends"], {f"locks:{record.identity}": max(1, found["floor"])}, xx=True)


def end_lock(client: Redis, identity: str = "same") -> None:
    """The time of a lock has passed."""
    client.zadd(KEY["ends"], {f"locks:{identity}": 1}, xx=True)


def state_of(worker: LockCaller) -> tuple[str, str] | None:
    """Return the holder of the lock and its state."""
    found = worker.locked()
    return (found.task_id, found.state) if found else None


def told(started: tuple[Started, ...]) -> list[tuple[str, str, str]]:
    """Return the started tasks, each with its verdict and the task that it duplicates."""
    return [(each.task, each.verdict, each.first) for each in started]
