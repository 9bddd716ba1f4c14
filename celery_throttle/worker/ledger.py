"""What the gate wants from the store, gathered while the loop turns and sent in one call.

The gate says what it needs; the ledger sends it, survives lost connections, and tells the gate what came of it.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from redis.exceptions import RedisError

from celery_throttle.core.limits import described, shown
from celery_throttle.errors import StoreUnavailable
from celery_throttle.store import replies
from celery_throttle.store.replies import Answer
from celery_throttle.worker.runs import holders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from celery_throttle.store.replies import Grant, Reply, Withdrawn
    from celery_throttle.store.scripts import ParkRow, Store
    from celery_throttle.worker.link import Link
    from celery_throttle.worker.outage import Outage
    from celery_throttle.worker.runs import Outcome, Run

__all__ = ["Decisions", "Ledger"]

logger = logging.getLogger(__name__)

_PARKED_AT_ONCE = 100
_ROUNDS = 5


class Decisions(Protocol):
    """What the ledger tells the gate."""

    def claimed(self, count: int) -> None:
        """So many slots are set aside for parked tasks (less, if negative)."""

    def granted(self, run: Run, *, last: bool, fencing_token: int) -> None:
        """It has its permit, maybe the last free one of its limit, and its lock if it needs one, and starts."""

    def refused(self, run: Run) -> None:
        """It has to be parked."""

    def parked(self, run: Run) -> None:
        """The store has its message: the broker's can be acknowledged."""

    def crowded(self, run: Run) -> None:
        """It was not parked: as many wait for its limit as may."""

    def sent_back(self, run: Run) -> None:
        """The store has the message of a task that had begun, and its permit."""

    def put_off(self, runs: list[Run], ledger: Ledger) -> None:
        """The store is there but refused a call, which had no effect: ask again after a while."""

    def resumed(self, grant: Grant, ledger: Ledger) -> None:
        """A parked task has its permit and a slot here."""

    def answered(self, reply: Reply, ledger: Ledger) -> None:
        """After all of the above, what else a reply said."""


@dataclass(frozen=True)
class _ParkCall:
    """A park call under way: sent again unchanged, but for the slots, if its reply is lost."""

    number: int
    runs: tuple[Run, ...]
    rows: tuple[ParkRow, ...]


class Ledger:
    """Gathers and sends for one group of limits; all on the loop.

    Args:
        store: builds the calls.
        worker_id: begins every nonce of this worker.
        gate: hears what came of it.
        declared: what this worker declares of each limit of the group, by name.
        outage: what happens while the store is out of reach.

    Attributes:
        hungry: whether there may be something to start, so that the gate looks when it has a slot.
        look_at: when the store said that something may change, on the clock of ``time.monotonic``.
    """

    link: Link

    def __init__(
        self, store: Store, worker_id: str, gate: Decisions, declared: Mapping[str, str], outage: Outage
    ) -> None:
        self.store, self._worker_id, self._gate = store, worker_id, gate
        self.declared, self.outage = declared, outage
        self.hungry = True
        self.look_at: float | None = None
        #: Nothing is sent while set: the store answers, but refuses.
        self.paused = False
        self._numbers = itertools.count(1)
        self._asked: list[Run] = []
        self._released: list[tuple[tuple[str, ...], tuple[str, str, str]]] = []
        self._started: list[tuple[str, str]] = []
        self._parks: list[tuple[Run, ParkRow, bool]] = []
        self._parking: _ParkCall | None = None
        self._limited: list[tuple[Run, ParkRow, float, list[str]]] = []
        self._looking = False
        self._under_way = 0
        self._known: set[str] = set()
        self._birth = ""

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be sent or answered."""
        waiting = self._asked or self._released or self._started or self._parks or self._limited
        return not (waiting or self._under_way)

    @property
    def parking(self) -> tuple[Run, ...]:
        """Tasks that may or may not be parked: their call is under way."""
        return self._parking.runs if self._parking else ()

    @property
    def released_limits(self) -> list[tuple[str, ...]]:
        """The limits of each run whose permits go back with the next exchange."""
        return [limits for limits, _ in self._released]

    def nonce(self) -> str:
        """A new name for one delivery."""
        return f"{self._worker_id}:{next(self._numbers):x}"

    def consume(self, queues: tuple[str, ...]) -> None:
        """From now on the worker starts tasks of these queues."""
        self.store = replace(self.store, queues=queues)

    def ask(self, run: Run) -> None:
        """Ask for a permit."""
        run.permit = True
        self._asked.append(run)

    def give_up(self, identity: str, task_id: str) -> None:
        """Free the identity lock of a task that will never run; its ttl does that too, only later."""
        if self.link.up:
            self._send(self.store.give_up(identity, task_id), lambda raw: None)

    def release(self, limits: tuple[str, ...], task_id: str, nonce: str, outcome: Outcome) -> None:
        """Give permits back, an identity lock, or both."""
        self._released.append((limits, (task_id, nonce, outcome)))

    def started(self, run: Run) -> None:
        """An early-ack task started: the store may forget its message."""
        self._started.append((run.request.id, run.nonce))

    def park(self, run: Run, queue: str, message: bytes, *, slot: bool) -> None:
        """Set a task aside; whoever's turn it is gets its slot, if it has one."""
        self._parks.append((run, _park_row(run, queue, message), slot))

    def send_back(self, run: Run, queue: str, message: bytes, pause: float, limits: list[str]) -> None:
        """Set a task aside that has begun, at the head of its line; these limits start nothing for so many seconds."""
        self._limited.append((run, _park_row(run, queue, message), pause, limits))

    def forget_unsent(self) -> None:
        """The broker connection is gone, and with it every request that has not been decided: drop them."""
        self._asked.clear()
        self._parks.clear()

    def flush(self, claims: int, short: int) -> None:
        """Send what was gathered.

        Args:
            claims: slots for parked tasks, used if an exchange goes out.
            short: 0, or how many slots fewer there are than tasks to be parked that came with one (negative).
        """
        if self.paused or not self.link.up:
            return
        if self._parks and not self._parking:
            self._send_parks(short)
        if self._limited:
            self._send_limited()
        if self._asked or self._released:
            self._send_exchange(claims)
        elif self._started:
            self._send_started()

    def wait(self) -> None:
        """Send the rest and wait for the replies, when no loop will bring them any more."""
        for _ in range(_ROUNDS):  # a reply may bring a grant to hand back
            if self.idle or not (self.link.up or self.link.connect_now()):
                return
            self.flush(0, 0)
            self.link.drain()

    def look(self, slots: int) -> bool:
        """Start what can start in so many slots; False if it has to wait."""
        if self._looking or self.paused or not self.link.up:
            return False
        self._looking = True
        self._gate.claimed(slots)
        call = self.store.look(self.nonce(), slots)

        def heard(raw: Any) -> None:
            self._looking = False
            self._gate.claimed(-slots)
            if not self._failed(raw, []):
                self._settle(replies.reply(raw))

        self._send(call, heard)
        return True

    def reconcile(self, expected: Iterable[str]) -> None:
        """After a lost connection: carry on a park call under way, and hand back grants that never arrived."""
        if self._parking:
            self._send_park_call(0)
        self._known = set(expected)
        self._send(self.store.mine(self._worker_id), self._compare)

    def declare(self) -> None:
        """Say how many permits each limit has; notices a store that was emptied."""

        def heard(raw: Any) -> None:
            if isinstance(raw, list):
                self._birth, *changed = (each.decode() for each in raw)
                _tell_changes(self.declared, changed)

        self._send(self.store.declare(self._birth, self.declared.items()), heard)

    def renew(self, held: list[Run], judge: Callable[[list[Run], Any], None]) -> None:
        """Renew at once, before anything else is asked on a new connection."""

        def heard(raw: Any) -> None:
            if not isinstance(raw, Exception):
                judge(held, raw)

        self._send(self.store.renew(holders(held)), heard)

    def withdraw(self, tasks: list[str], taken: Any) -> None:
        """Take tasks out of their lines; ``taken`` is called with each `Withdrawn`."""

        def heard(raw: Any) -> None:
            if not isinstance(raw, Exception):
                each: Withdrawn
                for each in replies.withdrawn(raw):
                    taken(each)

        if self.link.up:
            self._send(self.store.withdraw(tasks), heard)

    def leave(self) -> None:
        """Say goodbye."""
        if self.link.up:
            self._send(self.store.leave(self._worker_id), lambda raw: None)

    def _send(self, call: Any, heard: Any) -> None:
        self._under_way += 1

        def count(raw: Any) -> None:
            self._under_way -= 1
            heard(raw)

        self.link.send(call, count)

    def _send_exchange(self, claims: int) -> None:
        asked, self._asked = self._asked, []
        released, self._released = self._released, []
        started, self._started = self._started, []
        self._gate.claimed(claims)
        call = self.store.exchange(
            self.nonce(),
            claims,
            [row for _, row in released],
            started,
            holders(asked),
        )

        def heard(raw: Any) -> None:
            self._gate.claimed(-claims)
            if self._failed(raw, asked):
                # Giving back is safe to repeat, and nothing else frees the permit before its lease ends.
                self._released[:0] = released
                self._started[:0] = started
                self.paused = isinstance(raw, RedisError)
                return
            answer = replies.reply(raw)
            for run, decision in zip(asked, answer.answers, strict=True):
                if decision in (Answer.GRANTED, Answer.GRANTED_LAST):
                    self._gate.granted(run, last=decision == Answer.GRANTED_LAST, fencing_token=0)
                elif decision > max(Answer):
                    self._gate.granted(run, last=False, fencing_token=decision)
                elif decision == Answer.ALREADY_PARKED:
                    self._gate.parked(run)
                else:
                    self._gate.refused(run)
            self._settle(answer)

        self._send(call, heard)

    def _send_started(self) -> None:
        started, self._started = self._started, []

        def heard(raw: Any) -> None:
            if self._failed(raw, []):
                self._started[:0] = started
                self.paused = isinstance(raw, RedisError)

        self._send(self.store.started(started), heard)

    def _send_parks(self, short: int) -> None:
        now, self._parks = self._parks[:_PARKED_AT_ONCE], self._parks[_PARKED_AT_ONCE:]
        runs, rows, slots = zip(*now, strict=True)
        self._parking = _ParkCall(next(self._numbers), runs, rows)
        self._send_park_call(max(sum(slots) + short, 0))

    def _send_park_call(self, slots: int) -> None:
        parking = self._parking
        if parking is None:
            return
        call = self.store.park(self.nonce(), slots, self._worker_id, parking.number, parking.rows)

        def heard(raw: Any) -> None:
            if isinstance(raw, StoreUnavailable):
                return  # Under way still, for all we know: `reconcile` sends it again.
            self._parking = None
            if self._failed(raw, list(parking.runs)):
                return
            answer = replies.reply(raw)
            for place, run in enumerate(parking.runs):
                if place in answer.refused:
                    self._gate.crowded(run)
                else:
                    self._gate.parked(run)
            self._settle(answer)

        self._send(call, heard)

    def _send_limited(self) -> None:
        back, self._limited = self._limited, []
        for each in back:
            self._send_one_back(each)

    def _send_one_back(self, each: tuple[Run, ParkRow, float, list[str]]) -> None:
        run, row, pause, limits = each

        def heard(raw: Any) -> None:
            if self._failed(raw, []):
                # Nobody else has its message, so it is kept, and its permit renewed, until the store takes it.
                self._limited.append(each)
                self.paused = isinstance(raw, RedisError)
                return
            self._gate.sent_back(run)
            self._settle(replies.reply(raw))

        self._send(self.store.send_back(row, run.nonce, pause, limits), heard)

    def _failed(self, raw: Any, runs: list[Run]) -> bool:
        if isinstance(raw, StoreUnavailable):
            return True  # The gate hears of it from the link, once for all.
        if isinstance(raw, RedisError):
            logger.warning("celery_throttle: the store refused a call: %s", raw)
            self._gate.put_off(runs, self)
            return True
        return False

    def _settle(self, answer: Reply) -> None:
        for grant in answer.grants:
            self._gate.resumed(grant, self)
        self._gate.answered(answer, self)

    def _compare(self, raw: Any) -> None:
        if isinstance(raw, Exception):
            return
        for grant in replies.grants(raw):
            if grant.nonce not in self._known:
                self.release((grant.limit,), grant.task_id, grant.nonce, "return")


def _park_row(run: Run, queue: str, message: bytes) -> ParkRow:
    needs = run.needs
    return run.request.id, needs.pool, needs.declared, run.attempt, queue, message, run.lock, needs.more


def _tell_changes(ours: Mapping[str, str], changed: list[str]) -> None:
    for limit, before in zip(changed[::2], changed[1::2], strict=True):
        logger.warning(
            "celery_throttle: limit %r was declared as %s and is %s from now on, as this worker has it: "
            "if this is no new release, give all workers the same",
            shown(limit), described(before), described(ours[limit]),
        )  # fmt: skip
