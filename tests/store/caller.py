"""A worker as the store sees it: numbered calls, nonces of its own, and no pool behind them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, cast

from redis import Redis

from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.core.keys import Keys
from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import NOTHING, Needs, Policy
from celery_throttle.core.sites import Sites
from celery_throttle.store.calls import Store
from celery_throttle.store.exchange import Arrival, Delivery, DeliveryChange, Exchange
from celery_throttle.store.exchange_reply import Answer, Grant, Overtaken, Reply, Withdrawn, read_exchanged
from celery_throttle.store.reading import text
from celery_throttle.store.scripts import Call, execute

KEYS = Keys("test")
LEASE = 600.0

#: How a run ends, in a word: with its message stored, and with the broker's.
ENDS = {
    "done": Facts(True, Message.NOBODY, Result.SUCCESS),
    "failed": Facts(True, Message.NOBODY, Result.FAILURE),
    "retry": Facts(True, Message.NOBODY, Result.RETRY),
    "ignored": Facts(True, Message.NOBODY, Result.NOTHING),
    "requeue": Facts(True, Message.TAIL),
    "again": Facts(True, Message.PLACE),
    "return": Facts(False, Message.PLACE),
    "never": Facts(False, Message.NOBODY),
    "lost": Facts(True, Message.LOST),
}
_BROKERS = {
    "requeue": Facts(True, Message.BROKER),
    "again": Facts(True, Message.BROKER),
    "return": Facts(False, Message.BROKER),
}


@dataclass(frozen=True)
class Asked(Needs):
    """The terms of a call and of its limits, so that a caller can declare them."""

    limits: tuple[Limit, ...] = ()


What = Limit | Needs | None


def needs_of(what: What) -> Needs:
    """Return one permit of a limit in the form that the store takes."""
    if what is None:
        return NOTHING
    return what if isinstance(what, Needs) else Policy((what,)).needs({"keys": {what.name: "k"}, "fair": ["w", 1]})


@dataclass
class Rows:
    """The rows of a call, each kind by itself."""

    slots: int = 0
    errors: int = 0
    clock: float = 0.0
    read: int | None = None
    passed: list[DeliveryChange] = field(default_factory=list)
    ended: list[DeliveryChange] = field(default_factory=list)
    began: list[tuple[str, str]] = field(default_factory=list)
    unacked: list[Delivery] = field(default_factory=list)
    acked: list[Delivery] = field(default_factory=list)
    revoked: list[str] = field(default_factory=list)
    never: list[tuple[str, str, str]] = field(default_factory=list)
    unread: list[tuple[str, str]] = field(default_factory=list)
    asked: list[Arrival] = field(default_factory=list)
    parked: list[Arrival] = field(default_factory=list)
    back: list[Arrival] = field(default_factory=list)

    @property
    def exchange(self) -> Exchange:
        """The rows as a worker sends them: those that ask first, without their messages."""
        return Exchange(
            slots=self.slots,
            errors=self.errors,
            clock=self.clock,
            arrived=[*(each._replace(message=b"") for each in self.asked), *self.parked, *self.back],
            changed=[
                *self.passed,
                *self.ended,
                *(DeliveryChange("began", task, 0, nonce) for task, nonce in self.began),
                *(DeliveryChange("unacked", *each) for each in self.unacked),
                *(DeliveryChange("acked", *each) for each in self.acked),
            ],
            gone=[
                *(("unread", task, why) for task, why in self.unread),
                *(("revoked", task) for task in self.revoked),
                *(("never", task, identity, first) for identity, task, first in self.never),
            ],
        )


@dataclass(frozen=True)
class Heard(Reply):
    """A reply, with the answers to each kind of rows."""

    asked: tuple[int, ...] = ()
    parked: tuple[int, ...] = ()

    @classmethod
    def of(cls, reply: Reply, rows: Rows) -> Heard:
        asked = len(rows.asked)
        parked = reply.arrived[asked : asked + len(rows.parked)]
        parts: Any = {each.name: getattr(reply, each.name) for each in fields(Reply)}
        return cls(**parts, asked=reply.arrived[:asked], parked=parked)


def passed(task: str, nonce: str, result: Result, to: Arrival, attempt: int = 0) -> DeliveryChange:
    """Return the row about a run that has ended, whose permit another task has."""
    return DeliveryChange("passed", task, attempt, nonce, facts=Facts(True, Message.NOBODY, result), to=to)


def ended(run: Arrival | Grant, how: str | Facts = "done") -> DeliveryChange:
    """Return the row about the end of a run; the message is where it came from."""
    facts = how if isinstance(how, Facts) else ENDS[how]
    if isinstance(run, Arrival) and isinstance(how, str):
        facts = _BROKERS.get(how, facts)
    return DeliveryChange("ended", *run.delivery, facts)


def held_by(grant: Grant) -> Arrival:
    """Return the fields that a worker needs to keep the permit of a resumed task."""
    spec = grant.lock.spec if grant.lock else ""
    return Arrival(
        grant.task, grant.needs, grant.queue, grant.attempt, spec, grant.nonce, publication=grant.publication
    )


class Caller:
    """One worker: its id begins every nonce, and it can start tasks of its queues."""

    def __init__(
        self,
        client: Redis,
        name: str,
        *queues: str,
        lease: float = LEASE,
        prefix: str = KEYS.prefix,
        sites: Sites | None = None,
    ) -> None:
        self.client, self.name, self.queues = client, name, queues
        self.store = Store(Keys(prefix), lease, sites=sites)
        self.number = 0
        self.last = Rows()
        self.declared: dict[str, str] = {}
        self._nonces = itertools.count(1)
        self.parcels: dict[str, Delivery] = {}

    def nonce(self) -> str:
        return f"{self.name}:{next(self._nonces):x}"

    # -- the numbered call ---------------------------------------------------------------------------------------

    def say(self, said: Rows) -> Heard:
        """The next call."""
        self.number += 1
        self.last = said
        return self.again()

    def again(self, number: int | None = None) -> Heard:
        """The last call once more, as after a lost reply."""
        raw = self.raw(self.last, self.number if number is None else number)
        try:
            reply = read_exchanged(raw)
        except Overtaken as later:  # as a worker does
            self.number = later.number + 1
            return self.again()
        if reply is None:  # the store is empty, it was not carried out
            execute(self.client, self.store.declare("", self.declared.items()))
            return self.again(number)
        assert reply is not None
        return Heard.of(reply, self.last)

    def raw(self, said: Rows, number: int) -> Any:
        return execute(self.client, self.call(said, number))

    def call(self, said: Rows, number: int) -> Call:
        return self.store.exchange(self.name, number, self.queues, said.exchange, read=said.read)

    # -- its parts -----------------------------------------------------------------------------------------------

    def arrival(
        self, task: str, what: What, *, attempt: int = 0, lock: str = "", queue: str = "", publication: str = ""
    ) -> Arrival:
        """A task that wants to start."""
        self.know(what)
        needs, where = self._bound(what).text, queue or self.queues[0]
        return Arrival(task, needs, where, attempt, lock, self.nonce(), publication=publication)

    def parcel(
        self,
        task: str,
        what: What,
        *,
        attempt: int = 0,
        lock: str = "",
        queue: str = "",
        message: bytes | None = None,
        turn: tuple[str, str, int] | None = None,
        wait_ms: int | None = None,
        outside: bool = False,
        age: float = 0.0,
        unacked: bool = False,
        publication: str = "",
        expires_ms: int | None = None,
    ) -> Arrival:
        """A task to be set aside; its message is its id and attempt."""
        self.know(what)
        needs, text = self._bound(what), message_of(task, attempt) if message is None else message
        turn, wait_ms = turn or needs.turn, needs.wait_ms if wait_ms is None else wait_ms
        where = queue or self.queues[0]
        nonce = self.nonce()
        self.parcels[task] = Delivery(task, attempt, nonce, publication)
        arrival = Arrival(task, needs.text, where, attempt, lock, nonce, text, turn, wait_ms, outside, age, unacked)
        return arrival._replace(publication=publication, expires_ms=expires_ms)

    def _bound(self, what: What) -> Needs:
        needs = needs_of(what)
        return needs if self.store.sites is None else needs.bound(self.store.sites)

    def parcelled(self, *tasks: str) -> list[Delivery]:
        """The deliveries of these that were to be set aside last."""
        return [self.parcels[task] for task in tasks]

    def know(self, what: What) -> None:
        """Declare a limit that is not declared yet; an earlier declaration holds."""
        limits = (what,) if isinstance(what, Limit) else what.limits if isinstance(what, Asked) else ()
        new = {limit.name: limit.declared for limit in limits if limit.name not in self.declared}
        if new or not self.declared:
            self.declared |= new
            execute(self.client, self.store.declare("", new.items(), keeps=True))

    def exchange(self, slots: int = 0, **said: Any) -> Heard:
        return self.say(Rows(slots=slots, **said))

    def ask(self, task: str, what: What, *, attempt: int = 0, slots: int = 0) -> tuple[int, Arrival]:
        """Ask for permits: the answer, and the holder if they are granted."""
        arrival = self.arrival(task, what, attempt=attempt)
        return self.exchange(slots, asked=[arrival]).asked[0], arrival

    def take(self, task: str, what: What, *, attempt: int = 0) -> Arrival:
        """Ask for permits that must be free."""
        answer, arrival = self.ask(task, what, attempt=attempt)
        assert answer == Answer.GRANTED
        return arrival

    def put(self, task: str, what: What, *, slots: int = 0, **parts: Any) -> Heard:
        """Set one task aside, from the first queue of this worker unless another is given."""
        return self.exchange(slots, parked=[self.parcel(task, what, **parts)])

    def release(self, run: Arrival | Grant, how: str | Facts = "done", *, slots: int = 0) -> Heard:
        return self.exchange(slots, ended=[ended(run, how)])

    def send_back(self, run: Arrival, pause: float, about: str | None = None) -> Heard:
        """Send a task back after a "slow down"; its message goes to the store."""
        about = run.needs if about is None else about
        return self.exchange(back=[run._replace(message=b"again", pause=(pause, about))])

    def saved(self, *tasks: str) -> list[int]:
        """Return the records of these tasks in the store."""
        asked = [self.parcels.get(task, Delivery(task, 0, "")) for task in tasks]
        return cast("list[int]", execute(self.client, self.store.saved(asked)))

    def look(self, slots: int = 1) -> Heard:
        return self.exchange(slots)

    def look_on(self, slots: int) -> list[str]:
        """Look until nothing is left to look at; the tasks that started."""
        found: list[str] = []
        while True:
            reply = self.look(slots)
            found += [grant.task for grant in reply.grants]
            if not (reply.grants or reply.more or 0 < reply.wait < 0.1):
                return found

    def withdraw(self, *tasks: str) -> tuple[Withdrawn, ...]:
        return self.exchange(revoked=list(tasks)).withdrawn

    # -- the others ----------------------------------------------------------------------------------------------

    def renew(self, *runs: Arrival | Grant, number: int | None = None, waiting: Sequence[str] = ()) -> list[int]:
        """Renew its holders after its last call, or after an earlier one."""
        return self.renew_all(*runs, number=number, waiting=waiting)[0]

    def renew_all(
        self, *runs: Arrival | Grant, number: int | None = None, waiting: Sequence[str] = (), birth: str = ""
    ) -> tuple[list[int], list[int], bytes]:
        held = [held_by(run) if isinstance(run, Grant) else run for run in runs]
        call = self.store.renew(self.name, self.number if number is None else number, held, waiting, birth)
        return cast("tuple[list[int], list[int], bytes]", execute(self.client, call))

    def reap(self, most: int = 100) -> list[tuple[str, str]]:
        """Clear expired holders: (task id, its needs) each."""
        _, cleared = cast("tuple[int, list[list[bytes]]]", execute(self.client, self.store.reap(most)))
        return [(text(row[0]), text(row[1])) for row in cleared]

    def declare(self, *limits: Limit, known: str = "") -> str:
        """Declare limits with their permits, as a worker that starts (or that has seen this birth of the store)."""
        return self.declare_all(*limits, known=known)[0]

    def declare_all(self, *limits: Limit, known: str = "") -> list[str]:
        self.declared.update((limit.name, limit.declared) for limit in limits)
        rows = [(limit.name, limit.declared) for limit in limits]
        call = self.store.declare(known, rows, worker=(self.name, self.declared))
        return [each.decode() for each in cast("list[bytes]", execute(self.client, call))]

    def rejoin(self) -> None:
        """Declare its limits, knowing a store with other data."""
        self.declare_all(known="1")
        execute(self.client, self.store.declare("", self.declared.items(), keeps=True))

    def come_back(self) -> None:
        """Declare its limits after more time without the store than a live worker is ever silent."""
        away = self.store.lease / 3
        execute(self.client, self.store.declare("", self.declared.items(), keeps=True, away=away))

    def leave(self) -> None:
        execute(self.client, self.store.leave(self.name))


def message_of(task: str, attempt: int = 0) -> bytes:
    """The message that a task is parked with."""
    return f"{task}#{attempt}".encode()


def started(reply: Reply) -> tuple[str, ...]:
    """Return the tasks that a reply starts."""
    return tuple(grant.task for grant in reply.grants)
