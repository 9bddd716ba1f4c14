"""Build the calls to the scripts of the gate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from celery_throttle.core.contents import stored_id
from celery_throttle.core.history import RINGS, Ring
from celery_throttle.core.queues import code_of_broker
from celery_throttle.core.storable import quoted, written
from celery_throttle.store.gate_script import ALONE
from celery_throttle.store.scripts import Argument, Call, Script

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from celery_throttle.core.keys import Keys
    from celery_throttle.core.release import Options
    from celery_throttle.core.sites import Sites
    from celery_throttle.store.exchange import Arrival, Delivery, Exchange
    from celery_throttle.store.history import Counted

__all__ = ["CLAIMED_FOR", "MOST_ASKED", "MOST_DECLARED", "Store"]

#: Seconds for which a claim lasts until its message was sent. A publish that takes longer may have a duplicate, which
#: the workers drop. A publisher that was killed leaves its lock for so long.
CLAIMED_FOR = 10.0

#: Limits in one call of `Store.declarations`: the server runs no other command while it reads them.
MOST_DECLARED = 50
#: Tasks in one call of `Store.known`, which only looks them up.
MOST_ASKED = 500


@dataclass(frozen=True)
class Store:
    """Build the calls of one worker (or one command) on one set of keys.

    Args:
        keys: the keys of the store.
        lease: seconds for which a permit lasts without renewal.
        broker: the description of the worker's broker; "" for a caller that is no worker.
        sites: the sites of the caller; None if its app has no limit with ``per``.
        max_begins: how often a task may begin without an outcome. Workers declare it.
        options: those in the code of a worker, see `Options`.
    """

    keys: Keys
    lease: float
    broker: str = ""
    sites: Sites | None = None
    max_begins: int = 5
    options: Options = field(default_factory=dict, compare=False, repr=False)
    _head: tuple[Argument, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        names = (*self.keys.all, self.keys.wake)
        object.__setattr__(self, "_head", (len(names), *names, int(self.lease * 1000)))

    def exchange(
        self,
        worker: str,
        number: int,
        queues: Sequence[str],
        exchange: Exchange,
        birth: str = "",
        read: int | None = None,
    ) -> Call:
        """Return the numbered call of a worker.

        Args:
            worker: its name.
            number: of the call.
            queues: whose tasks the worker starts.
            exchange: the rows.
            birth: the birth of the store's data; "": any birth.
            read: the last call whose answer the worker has read; None: the call before this one.
        """
        more = self.sites.row if self.sites is not None else ""
        if read is not None and read < number - 1:
            more += f',"read":{read}'
        return self._call("exchange", exchange.text(worker, number, queues, birth, more), *exchange.messages())

    def renew(
        self, worker: str, number: int, held: Iterable[Arrival], waiting: Sequence[str] = (), birth: str = ""
    ) -> Call:
        """Renew leases.

        Args:
            worker: its name.
            number: of the worker's last call when it listed the permits that it holds.
            held: those permits.
            waiting: ids of tasks that wait, of holders outside of tasks.
            birth: of the store's data that the worker knew when it listed them; "": any birth.
        """
        rows = ",".join([each.row for each in held])
        about = f'"number":{number},"birth":{quoted(birth)}' if birth else f'"number":{number}'
        text = f'{{"worker":{quoted(worker)},{about},"held":[{rows}],"waiting":{written(waiting)}}}'
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
        """Declare limits, as `declarations`; ``worker``: its name, and all its declarations."""
        broker = (code_of_broker(self.broker), self.broker)
        name, everything = worker
        whole = written({"limits": dict(sorted(everything.items())), "options": self.options}) if name else ""
        about = (known_birth, int(keeps), round(away * 1000), *broker, name, whole, self.max_begins if name else "")
        rows = list(limits)
        return self._call("declare", *about, len(rows), *(text for row in rows for text in row))

    def declarations(
        self,
        known_birth: str,
        limits: Iterable[tuple[str, str]],
        *,
        keeps: bool = False,
        away: float = 0.0,
        worker: str = "",
    ) -> list[Call]:
        """Return the calls that declare limits, a page of limits in each call.

        Args:
            known_birth: the birth of the store's data in the caller's last answer, "" at first.
            limits: the name of each limit, and its declaration.
            keeps: whether to declare only limits that the store does not have.
            away: seconds for which the caller could not reach the store; 0: not known.
            worker: the name of the caller if it is a worker, so that operators can compare the declarations of workers.

        The caller waits for the answer to each call before it makes the next one. If an answer has another birth than
        the first answer, the store was emptied in between: the caller has to begin with the first call again.
        """
        rows = list(limits)
        pages = [rows[first : first + MOST_DECLARED] for first in range(0, len(rows), MOST_DECLARED)] or [[]]
        first, *others = pages
        return [
            self.declare(known_birth, first, keeps=keeps, away=away, worker=(worker, dict(rows))),
            *(self.declare(known_birth, page, keeps=keeps) for page in others),
        ]

    def saved(self, parked: Sequence[Delivery]) -> Call:
        """Ask whether the store has these deliveries; the caller then waits until the data is safe."""
        return self._call("parked_safely", written(parked))

    def known(self, tasks: Sequence[str]) -> Call:
        """Ask which of these tasks, `MOST_ASKED` at most, the store has a record of: 1 or 0 for each."""
        return self._call("known", len(tasks), *tasks)

    def leave(self, worker: str) -> Call:
        """Deregister a worker."""
        return self._call("worker_leaves", worker)

    def reap(self, most: int) -> Call:
        """Clear expired holders, ``most`` at the most."""
        return self._call("reap", most)

    def reserve(self, bucket: str, declared: str, cost: int, longest: float) -> Call:
        """Reserve a start within ``longest`` seconds."""
        return self._call("reserve", bucket, declared, cost, round(longest * 1_000_000))

    def crowd(self, bucket: str) -> Call:
        """Ask how many tasks are parked for a bucket."""
        return self._call("crowd", bucket)

    def claim(self, task: str, lock: str, least: float, *, awaited: bool = False) -> Call:
        """Claim an identity lock for a task about to be published, for some seconds; `sent` lets the lock last.

        Args:
            task: the task id.
            lock: the plan, see `LockPlan.spec`.
            least: seconds that the lock is to last once the message was sent.
            awaited: whether the task is published also if another one has the lock.
        """
        return self._call("claim", stored_id(task), lock, int(min(least, CLAIMED_FOR) * 1000), int(awaited))

    def sent(self, identity: str, task: str, claim: str, least: float, *, is_retry: bool = False) -> Call:
        """Let the lock of a claim last ``least`` seconds from now, because the message of its task was sent."""
        return self._call("sent", identity, stored_id(task), claim, int(least * 1000), int(is_retry))

    def succeeded(self, identity: str, task: str, fencing_token: int, remember: float, *, lost: bool = False) -> Call:
        """Record the success of a task for ``remember`` seconds; ``lost``: the result of the task is not kept."""
        return self._call("succeeded", identity, stored_id(task), str(fencing_token), round(remember * 1000), int(lost))

    def give_up(self, identity: str, task: str, first: str = "") -> Call:
        """Free the identity lock of a task that will never run, and end its wait for the outcome of ``first``."""
        return self._call("give_up", identity, stored_id(task), first)

    def locked(self, identity: str) -> Call:
        """Ask which task has an identity lock."""
        return self._call("locked", identity)

    def unlock(self, identity: str, task: str = "", *, name: str = "", by: str = "", why: str = "") -> Call:
        """Take an identity lock away from a task id (``""``: from any task); ``name`` is the task's name."""
        return self._call("unlock", identity, task, name, by, why)

    def control(self, bucket: str, what: str, value: str, until: str, by: str, why: str, request: str = "") -> Call:
        """Override, pause, ... a bucket, or end that (value ""), as in control.lua; the caller then calls `wake`."""
        return self._call("control", bucket, what, value, until, by, why, request)

    def wake(self, bucket: str, after: str) -> Call:
        """Find the lanes that may start after a change of a bucket, and publish hints to their workers."""
        return self._call("wake", bucket, after)

    def limits(self, source: Literal["limits", "overrides", "used", "waiting"], after: str) -> Call:
        """Ask for the names of limits and keys, a page at a time."""
        return self._call("limits", source, after)

    def status(self, buckets: Sequence[str], rates: Sequence[tuple[int, int, int]] = ()) -> Call:
        """Ask for the status of buckets, or their status with other rates: (count, period in us, burst) of each."""
        return self._call("status", len(buckets), *buckets, written(rates) if rates else "")

    def holders(self, past: int, count: int) -> Call:
        """Ask for a page of holders: ``count`` of them, after the first ``past``."""
        return self._call("holders", past, count)

    def parked(self, bucket: str | None, most: int, after: bytes = b"") -> Call:
        """Ask for a page of tasks parked for a bucket (a limit: with all its keys); None: for all parked tasks."""
        return self._call("parked", bucket or "", int(bucket is None), most, after)

    def firsts(self, buckets: Sequence[str]) -> Call:
        """Ask for the first task in the line of each bucket."""
        return self._call("firsts", len(buckets), *buckets)

    def oldest(self, limits: Sequence[str]) -> Call:
        """Ask for the parked task of each limit with the longest wait."""
        return self._call("oldest", len(limits), *limits)

    def explain(self, task: str) -> Call:
        """Ask for the record, the line, the limits and the lock of one task."""
        return self._call("explain", stored_id(task))

    def services(self) -> Call:
        """Ask for the brokers whose workers use this store."""
        return self._call("services")

    def declared(self, after: str) -> Call:
        """Ask for the declarations of the workers, a page at a time."""
        return self._call("declared", after)

    def lost(self, after: str) -> Call:
        """Ask for the runs of singletons whose leases have ended, a page at a time."""
        return self._call("lost", after)

    def errors(self) -> Call:
        """Ask how often workers lost the store, or the store refused a call."""
        return self._call("errors")

    def aside(self, most: int) -> Call:
        """Ask for the unreadable records that were set aside."""
        return self._call("unreadable", most)

    def mend(self, key: str, after: str, *, mends: bool) -> Call:
        """Check a page of a key for fields that are unreadable or contradict the records; ``mends``: repair them."""
        return self._call("mend", key, after, int(mends))

    def parked_ids(self, bucket: str, after: str, most: int) -> Call:
        """Ask for a page of the ids of parked tasks that need permits of a bucket.

        A limit stands for all its keys too, "" for all parked tasks.
        """
        return self._call("parked_ids", bucket, after, most)

    def parked_by_queue(self, after: str, most: int) -> Call:
        """Ask how many tasks are parked in each queue, a page of ``most`` lanes."""
        return self._call("parked_by_queue", after, most)

    def drop(self, bucket: str, by: str, why: str, change: str, tasks: Sequence[str]) -> Call:
        """Drop parked tasks; ``change`` is the answer to the previous call, "" at first."""
        return self._call("drop", bucket, by, why, change, len(tasks), *tasks)

    def unpark(self, nonce: str, most_bytes: int, tasks: Sequence[str]) -> Call:
        """Borrow the messages of parked tasks; `unparked` reports the outcome."""
        return self._call("unpark", nonce, most_bytes, len(tasks), *tasks)

    def unparked(
        self, nonce: str, by: str, why: str, change: str, published: Sequence[str], others: Sequence[str]
    ) -> Call:
        """Report which of the borrowed messages are published; ``change`` as in `drop`."""
        return self._call("unparked", nonce, by, why, change, len(published), *published, len(others), *others)

    def locks(self, after: str) -> Call:
        """Ask for the identity locks that are held, a page at a time."""
        return self._call("locks", after)

    def audit(self) -> Call:
        """Ask for the changes that operators made."""
        return self._call("audit")

    def count(self, counts: Iterable[Counted]) -> Call:
        """Add counts to the history of limits."""
        rows = list(counts)
        rings = [self.keys.ring(ring.name, row.limit) for row in rows for ring in RINGS]
        counted = [(("" if row.has_keys else row.limit), written(row.counts)) for row in rows]
        return self._call_with(rings, "add_history", *(value for each in counted for value in each))

    def history(self, limits: Iterable[str], ring: Ring) -> Call:
        """Ask for the history of limits."""
        return self._call_with([self.keys.ring(ring.name, limit) for limit in limits], "history")

    def _call_with(self, keys: Sequence[str], script: str, *rest: Argument) -> Call:
        number, *head, lease_ms = self._head
        return Call(Script.of_gate(script), (int(number) + len(keys), *head, *keys, lease_ms, script, *rest))

    def _call(self, script: str, *rest: Argument) -> Call:
        which = () if script == ALONE else (script,)
        return Call(Script.of_gate(script), (*self._head, *which, *rest), len(self._head))
