"""Build the calls to the scripts of the gate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from celery_throttle.core.history import RINGS, Ring
from celery_throttle.core.json_text import write
from celery_throttle.core.queues import code_of_broker
from celery_throttle.store.gate_script import ALONE
from celery_throttle.store.scripts import Argument, Call, Script

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from celery_throttle.core.keys import Keys
    from celery_throttle.store.exchange import Arrival, Delivery, Exchange
    from celery_throttle.store.history import Counted

__all__ = ["MOST_DECLARED", "Store"]


#: Limits in one call of `Store.declarations`: the server carries out nothing else while it reads them.
MOST_DECLARED = 50


@dataclass(frozen=True)
class Store:
    """Builds the calls of one worker (or one command) on one set of keys.

    Args:
        keys: where everything is.
        lease: seconds a permit lasts without renewal.
        broker: the description of the worker's broker; "" for a caller that is no worker.
    """

    keys: Keys
    lease: float
    broker: str = ""
    _head: tuple[Argument, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        names = (*self.keys.all, self.keys.wake)
        object.__setattr__(self, "_head", (len(names), *names, int(self.lease * 1000)))

    def exchange(self, worker: str, number: int, queues: Sequence[str], said: Exchange, birth: str = "") -> Call:
        """Say all that a worker has to say, to a store whose data began then; "": whenever that was."""
        return self._call("exchange", said.text(worker, number, queues, birth), *said.messages())

    def renew(self, worker: str, number: int, held: Iterable[Arrival], waiting: Sequence[str] = ()) -> Call:
        """Renew leases; ``number`` is that of the worker's last call when it found out what it holds."""
        rows = ",".join([each.row for each in held])
        text = f'{{"worker":"{worker}","number":{number},"held":[{rows}],"waiting":{write(waiting)}}}'
        return self._call("renew", text)

    def declare(
        self,
        known_birth: str,
        limits: Iterable[tuple[str, str]],
        *,
        keeps: bool = False,
        away: float = 0.0,
        worker: tuple[str, Mapping[str, str]] = ("", {}),
    ) -> Call:
        """Say how many permits each limit has.

        Args:
            known_birth: when the data of the store began that the caller knew, "" at first.
            limits: the name of each, and what is declared of it.
            keeps: only of those of which nothing is known.
            away: for how many seconds the caller could not reach the store; 0: it does not know.
            worker: the name of the caller, and all that it declares, for those who compare workers.
        """
        broker = (code_of_broker(self.broker), self.broker)
        name, everything = worker
        whole = write(dict(sorted(everything.items()))) if name else ""
        about = (known_birth, int(keeps), round(away * 1000), *broker, name, whole)
        return self._call("declare", *about, *_flat(list(limits)))

    def declarations(
        self,
        known_birth: str,
        limits: Iterable[tuple[str, str]],
        *,
        keeps: bool = False,
        away: float = 0.0,
        worker: str = "",
    ) -> list[Call]:
        """Return the calls that say how many permits each limit has, as `declare` does, a page of limits each.

        Each is to be made after the answer to the one before it. If that has another birth than the first answer, the
        store was emptied meanwhile: the first has to be made again.
        """
        rows = list(limits)
        pages = [rows[first : first + MOST_DECLARED] for first in range(0, len(rows), MOST_DECLARED)] or [[]]
        first, *others = pages
        return [
            self.declare(known_birth, first, keeps=keeps, away=away, worker=(worker, dict(rows))),
            *(self.declare(known_birth, page, keeps=keeps) for page in others),
        ]

    def saved(self, parked: Sequence[Delivery]) -> Call:
        """Ask what the store has of these, before waiting until that is safe."""
        return self._call("parked_safely", write(parked))

    def leave(self, worker: str) -> Call:
        """Say goodbye for a worker."""
        return self._call("worker_leaves", worker)

    def reap(self, most: int) -> Call:
        """Clear at most that many expired holders."""
        return self._call("reap", most)

    def reserve(self, bucket: str, declared: str, cost: int, longest: float) -> Call:
        """Book a start that is at most so many seconds away."""
        return self._call("reserve", bucket, declared, cost, round(longest * 1_000_000))

    def crowd(self, bucket: str) -> Call:
        """Ask how many wait for a bucket."""
        return self._call("crowd", bucket)

    def claim(self, task: str, lock: str, least: float, *, awaited: bool = False) -> Call:
        """Claim an identity lock for a task about to be published; it lasts at least that many seconds."""
        return self._call("claim", task, lock, int(least * 1000), int(awaited))

    def succeeded(self, identity: str, task: str, fencing_token: int, remember: float, *, lost: bool = False) -> Call:
        """Say that a task has succeeded, to be remembered for so many seconds; ``lost``: its result is not kept."""
        return self._call("succeeded", identity, task, str(fencing_token), round(remember * 1000), int(lost))

    def give_up(self, identity: str, task: str, first: str = "") -> Call:
        """Free the identity lock of a task that will never run, nor ask for the outcome of that other one."""
        return self._call("give_up", identity, task, first)

    def locked(self, identity: str) -> Call:
        """Ask who has an identity lock."""
        return self._call("locked", identity)

    def unlock(self, identity: str, task: str = "", *, name: str = "", by: str = "", why: str = "") -> Call:
        """Take an identity lock away from that task id (``""``: from whichever has it); ``name`` is the task's."""
        return self._call("unlock", identity, task, name, by, why)

    def control(self, bucket: str, what: str, value: str, until: str, by: str, why: str, request: str = "") -> Call:
        """Say something of a bucket at run time, or take it back (value ""), as control.lua has it; then `wake`."""
        return self._call("control", bucket, what, value, until, by, why, request)

    def wake(self, bucket: str, after: str) -> Call:
        """Look at what a change of a bucket lets start, and hint to those who can."""
        return self._call("wake", bucket, after)

    def limits(self, source: Literal["limits", "overrides", "used", "waiting"], after: str) -> Call:
        """Ask which limits and keys there are."""
        return self._call("limits", source, after)

    def status(self, buckets: Sequence[str], rates: Sequence[tuple[int, int, int]] = ()) -> Call:
        """Ask how buckets stand, or would with these rates: count, period (us) and burst of each."""
        return self._call("status", len(buckets), *buckets, write(rates) if rates else "")

    def holders(self, past: int, count: int) -> Call:
        """Ask who holds something."""
        return self._call("holders", past, count)

    def parked(self, bucket: str | None, most: int, after: bytes = b"") -> Call:
        """Ask who waits for a bucket (a limit: with all its keys), None: for anything; a page, after another one."""
        return self._call("parked", bucket or "", int(bucket is None), most, after)

    def firsts(self, buckets: Sequence[str]) -> Call:
        """Ask who is first in the lines of these buckets."""
        return self._call("firsts", len(buckets), *buckets)

    def oldest(self, limits: Sequence[str]) -> Call:
        """Ask which parked task of each limit waits for longest."""
        return self._call("oldest", len(limits), *limits)

    def explain(self, task: str) -> Call:
        """Ask for all that matters to one task."""
        return self._call("explain", task)

    def services(self) -> Call:
        """Ask which brokers have workers here."""
        return self._call("services")

    def declared(self, after: str) -> Call:
        """Ask what each worker has declared, a page at a time."""
        return self._call("declared", after)

    def lost(self, after: str) -> Call:
        """Ask for the runs of tasks that run once whose leases have ended, a page at a time."""
        return self._call("lost", after)

    def errors(self) -> Call:
        """Ask how often workers lost the store, or had a call refused."""
        return self._call("errors")

    def aside(self, most: int) -> Call:
        """Ask for the records that nobody could read."""
        return self._call("unreadable", most)

    def mend(self, key: str, after: str, *, mends: bool) -> Call:
        """Look through a key for what cannot be read, or does not agree with the records; and put it right."""
        return self._call("mend", key, after, int(mends))

    def parked_ids(self, bucket: str, after: str, most: int) -> Call:
        """Ask for the ids of all who are parked and need permits of a bucket (a limit: with all its keys; "": all)."""
        return self._call("parked_ids", bucket, after, most)

    def parked_by_queue(self, after: str, most: int) -> Call:
        """Ask how many are parked in each queue, of so many lanes."""
        return self._call("parked_by_queue", after, most)

    def drop(self, bucket: str, by: str, why: str, change: str, tasks: Sequence[str]) -> Call:
        """Drop parked tasks; ``change`` is what the call before it answered, "" at first."""
        return self._call("drop", bucket, by, why, change, len(tasks), *tasks)

    def unpark(self, nonce: str, most_bytes: int, tasks: Sequence[str]) -> Call:
        """Borrow the messages of parked tasks; `unparked` says what came of it."""
        return self._call("unpark", nonce, most_bytes, len(tasks), *tasks)

    def unparked(
        self, nonce: str, by: str, why: str, change: str, published: Sequence[str], others: Sequence[str]
    ) -> Call:
        """Say which of what was borrowed are published; ``change`` as in `drop`."""
        return self._call("unparked", nonce, by, why, change, len(published), *published, len(others), *others)

    def locks(self, after: str) -> Call:
        """Ask for the identity locks that somebody has."""
        return self._call("locks", after)

    def audit(self) -> Call:
        """Ask what people changed."""
        return self._call("audit")

    def count(self, counts: Iterable[Counted]) -> Call:
        """Add what was counted of limits to their history."""
        rows = list(counts)
        rings = [self.keys.ring(ring.name, row.limit) for row in rows for ring in RINGS]
        told = [(("" if row.has_keys else row.limit), write(row.counts)) for row in rows]
        return self._call_with(rings, "add_history", *(value for each in told for value in each))

    def history(self, limits: Iterable[str], ring: Ring) -> Call:
        """Ask what was counted of limits."""
        return self._call_with([self.keys.ring(ring.name, limit) for limit in limits], "history")

    def _call_with(self, keys: Sequence[str], script: str, *rest: Argument) -> Call:
        number, *head, lease_ms = self._head
        return Call(Script.of_gate(script), (int(number) + len(keys), *head, *keys, lease_ms, script, *rest))

    def _call(self, script: str, *rest: Argument) -> Call:
        which = () if script == ALONE else (script,)
        return Call(Script.of_gate(script), (*self._head, *which, *rest), len(self._head))


def _flat(rows: Sequence[tuple[Argument, ...]]) -> list[Argument]:
    return [len(rows), *(value for row in rows for value in row)]
