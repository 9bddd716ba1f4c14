"""A state: the content of the store, two model workers, a broker, and the history of each task."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field
from typing import Any

from celery_throttle.core.dedup import LockPlan
from celery_throttle.core.sites import Sites
from celery_throttle.store.calls import CLAIMED_FOR
from celery_throttle.store.exchange import Arrival, DeliveryChange
from celery_throttle.store.exchange_reply import Reply
from celery_throttle.store.scripts import Call
from tests.explore.store import CALLS, Content, Server, canonical
from tests.explore.worlds import IDENTITY, Config, Task

__all__ = ["Book", "Copy", "Message", "Permit", "Run", "Sent", "Worker", "World", "number_of"]

_BEGINNING_US = 1_800_000_000_000_000


def number_of(task: str) -> int:
    """Return which task of the world has this id."""
    return int(task[1:])


@dataclass(slots=True)
class Copy:
    """A message at the broker.

    Attributes:
        header: claim and first, of one that runs once and was claimed.
        at: the place of the worker that has it, -1 for none.
    """

    number: int
    task: int
    attempt: int
    header: tuple[str, str] | None
    at: int = -1
    redelivered: bool = False


@dataclass(slots=True)
class Run:
    """A delivery in a worker.

    Attributes:
        copy: the number of its message at the broker, None if the store has it.
        state: new, asking, parking, running, back (sent back to slow down), gone (its broker connection ended).
        conclude: the task whose outcome it asks for, in place of a body.
    """

    task: int
    attempt: int
    nonce: str
    lock: str
    header: tuple[str, str] | None
    copy: int | None
    epoch: int
    redelivered: bool
    state: str = "new"
    acked: bool = False
    conclude: str = ""

    @property
    def stored(self) -> bool:
        return self.copy is None

    @property
    def task_id(self) -> str:
        return f"t{self.task}"


@dataclass(slots=True)
class Permit:
    """A permit in the store with its holder there, and the outcome of that holder if another runs with it now."""

    told: Arrival
    result: str = ""


@dataclass(slots=True)
class Sent:
    """The call under way.

    Attributes:
        carried: whether it was carried out.
        late: how many leases of its grants have ended since.
    """

    packed: bytes
    arrived: list[str]
    carried: bool = False
    late: int = 0
    reply: Reply | None = None


@dataclass(slots=True)
class Message:
    """The rows that a worker sends with its next call, by nonce or row."""

    arrived: list[str] = field(default_factory=list)
    changed: list[DeliveryChange] = field(default_factory=list)
    unacked: dict[str, tuple[str, int]] = field(default_factory=dict)
    gone: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def ended(self) -> list[DeliveryChange]:
        return [row for row in self.changed if row.event == "ended"]

    @property
    def urgent(self) -> bool:
        return bool(self.unacked or self.gone or self.arrived or self.ended)


@dataclass(slots=True)
class Worker:
    """A live worker.

    Attributes:
        call: the number of its last call.
        permits: that it holds, by the nonce of the run with each.
        spare: permits that no run has, each with the nonce of the last.
        passed: nonces of runs with a permit that another run has in the store.
        offered: slots that the call under way offers.
        renewal: one that is on its way, and the nonces that it is about.
    """

    name: str
    call: int = 0
    sent: Sent | None = None
    say: Message = field(default_factory=Message)
    runs: dict[str, Run] = field(default_factory=dict)
    permits: dict[str, Permit] = field(default_factory=dict)
    spare: dict[str, Permit] = field(default_factory=dict)
    passed: list[str] = field(default_factory=list)
    closed: set[str] = field(default_factory=set)
    renewal: tuple[list[bytes], list[str], int] | None = None
    epoch: int = 0
    deliveries: int = 0
    offered: int = 0
    leaving: bool = False

    @property
    def idle(self) -> bool:
        return not (self.sent or self.runs or self.say.ended or self.spare or self.passed or self.renewal)


@dataclass(slots=True)
class Book:
    """The history of a task.

    Attributes:
        ran: how often each attempt has begun.
        credit: how often more than once it may begin.
        told: its reported end, "" if there is none.
        doubled: whether the broker has given a message of it to two, unseen by the store before both have come.
        header: as it was published.
    """

    published: bool = False
    ran: dict[int, int] = field(default_factory=dict)
    credit: int = 0
    told: str = ""
    revoked: bool = False
    doubled: bool = False
    header: tuple[str, str] | None = None

    def tell(self, what: str) -> None:
        self.told = self.told or what


@dataclass(slots=True)
class State:
    """All of it that is copied from state to state.

    Attributes:
        bodies: nonces of runs, each with its task, whether it has an identity, and the fencing token.
        lapsed: nonces of holders whose lease has ended.
        unlocked: nonces of runs whose lock was taken away, or may have been.
        strays: calls that may still arrive, each with its sender.
        confirming: calls of publishers that have sent their messages.
        most: of a bucket whose number was raised: the highest that holders may use.
    """

    now_us: int = _BEGINNING_US
    content: Content = field(default_factory=dict)
    broker: list[Copy] = field(default_factory=list)
    workers: list[Worker | None] = field(default_factory=lambda: [None, None])
    books: list[Book] = field(default_factory=list)
    bodies: dict[str, tuple[int, str, int]] = field(default_factory=dict)
    lapsed: set[str] = field(default_factory=set)
    unlocked: set[str] = field(default_factory=set)
    strays: list[tuple[str, bytes]] = field(default_factory=list)
    confirming: list[Call] = field(default_factory=list)
    budgets: dict[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)
    fence: int = 0
    copies: int = 0
    started: int = 0
    steered: int = 0
    birth: str = ""


class World:
    """A state, and the server that carries out its calls."""

    def __init__(self, config: Config, server: Server, state: State | None = None) -> None:
        self.config, self.server = config, server
        self.state = state or State(budgets=dict(config.budgets), books=[Book() for _ in config.tasks])

    def save(self) -> bytes:
        return pickle.dumps(self.state, 5)

    @classmethod
    def load(cls, config: Config, server: Server, saved: bytes) -> World:
        return cls(config, server, pickle.loads(saved))

    # -- the store -------------------------------------------------------------------------------------------------

    def call(self, *calls: Call | bytes) -> list[Any]:
        """Carry these out, and return the replies."""
        state = self.state
        replies, state.content = self.server.step(state.content, state.now_us, calls)
        return replies

    def record(self, task: str) -> dict[str, Any]:
        """Return the record of a task in the store, empty if there is none."""
        packed = self.state.content.get("records", {}).get(task)
        return json.loads(packed) if packed else {}

    @property
    def claims(self) -> list[str]:
        """The locks that are claimed, or whose next task has claimed them, and that no confirmation lets last."""
        found = []
        for identity, packed in self.state.content.get("locks", {}).items():
            lock, member = json.loads(packed), f"locks:{identity}"
            till = lock["next_till"] if lock.get("next") and lock.get("coming") else 0
            if lock["state"] == "queued":
                till = self.state.content["ends"].get(member, 0)
            if self.now_ms < float(till) <= self.now_ms + CLAIMED_FOR * 1000:
                found.append(member)
        return found

    @property
    def now_ms(self) -> int:
        return self.state.now_us // 1000

    # -- small things ----------------------------------------------------------------------------------------------

    def task(self, run: Run) -> Task:
        return self.config.tasks[run.task]

    def may(self, fault: str) -> bool:
        return self.state.budgets.get(fault, 0) > 0

    def spend(self, fault: str) -> None:
        self.state.budgets[fault] -= 1

    @property
    def alive(self) -> list[Worker]:
        return [worker for worker in self.state.workers if worker is not None]

    def worker(self, place: int) -> Worker:
        worker = self.state.workers[place]
        assert worker is not None, f"no worker is at place {place}"
        return worker

    def start_worker(self, place: int) -> None:
        state = self.state
        state.started += 1
        state.workers[place] = Worker(f"w{state.started}")
        (reply,) = self.call(CALLS.declare(state.birth, self.config.limits.items()))
        state.birth = reply[0].decode()

    @property
    def next_copy(self) -> Copy | None:
        """The message that the broker delivers next."""
        return next((copy for copy in self.state.broker if copy.at < 0), None)

    def free_slots(self, place: int) -> int:
        worker = self.worker(place)
        taken = sum(run.state in ("running", "asking") for run in worker.runs.values())
        return self.config.slots[place] - taken - worker.offered

    def put(self, task: int, attempt: int, header: tuple[str, str] | None, *, again: bool = False) -> None:
        """Put a message into its queue: at the end, or before all others if it was delivered before."""
        state = self.state
        state.copies += 1
        copy = Copy(state.copies, task, attempt, header, redelivered=again)
        state.broker.insert(0 if again else len(state.broker), copy)

    def take_back(self, place: int) -> list[Copy]:
        """Put the unacknowledged messages of a worker at the head of the queue; return them."""
        state = self.state
        mine = [copy for copy in state.broker if copy.at == place]
        state.broker = [copy for copy in state.broker if copy.at != place]
        for copy in reversed(mine):
            self.put(copy.task, copy.attempt, copy.header, again=True)
        return mine

    def acknowledge(self, worker: Worker, run: Run) -> None:
        """Say that the broker need not keep its message, if the connection that brought it still stands."""
        if not run.stored and run.epoch == worker.epoch:
            self.state.broker = [copy for copy in self.state.broker if copy.number != run.copy]
            run.acked = True

    def plan(self, task: int, header: tuple[str, str] | None) -> LockPlan:
        dedup = self.config.tasks[task].dedup
        assert dedup is not None, f"t{task} has no lock"
        return LockPlan(IDENTITY, dedup, *(header or ("0", "")))

    def sites(self, name: str) -> Sites | None:
        """Return the sites of the worker of this name, None if the world has no limit with sites."""
        if not self.config.sites:
            return None
        place = [worker and worker.name for worker in self.state.workers].index(name)
        host = "h" if self.config.one_host else f"h{place}"
        return Sites({"host": host, "worker": f"w{place}"}, lambda: self.config.slots[place])

    def bound(self, needs: str, nonce: str) -> str:
        """Return needs, or a bucket, bound to the sites of the worker that gave this nonce."""
        sites = self.sites(nonce.partition(":")[0])
        return needs if sites is None else "\x01".join(map(sites.bind, needs.split("\x01")))

    def arrival(self, run: Run, message: bytes = b"") -> Arrival:
        task = self.task(run)
        needs = self.bound(task.needs, run.nonce)
        arrival = Arrival(run.task_id, needs, task.queue, run.attempt, run.lock, run.nonce, message)
        return arrival._replace(turn=task.turn) if message else arrival

    def counts(self, nonce: str) -> bool:
        """Return whether this run has its permit for sure."""
        for worker in self.alive:
            if nonce in worker.permits:
                return worker.permits[nonce].told.nonce not in self.state.lapsed
        return False

    # -- which states are the same ---------------------------------------------------------------------------------

    def key(self) -> str:
        """Return one text for all states that differ in names, places and times alone."""
        orders = [(0, 1), (1, 0)] if self.config.symmetric else [(0, 1)]
        known = self._calls()
        return min(canonical(self.state.content, self.state.now_us, self._model(order), known) for order in orders)

    def _calls(self) -> dict[str, tuple[int, bool]]:
        strays = {name for name, _ in self.state.strays}
        found = {each.name: (each.call, each.sent is not None or each.name in strays) for each in self.alive}
        for name, packed in self.state.content.get("workers", {}).items():
            if name not in found:
                found[name] = (json.loads(packed)["number"], name in strays)
        return found

    def _model(self, order: tuple[int, int]) -> str:
        state = self.state
        copies = {copy.number: place for place, copy in enumerate(state.broker)}
        broker = [
            (copy.task, copy.attempt, copy.header, order.index(copy.at) if copy.at >= 0 else -1, copy.redelivered)
            for copy in state.broker
        ]
        held = self._holders()
        rest = (
            *(broker, state.strays, [call.packed() for call in state.confirming]),
            *(sorted(state.lapsed & held), sorted(state.unlocked & state.bodies.keys()), sorted(state.bodies.items())),
            *(sorted(state.budgets.items()), sorted(state.most.items()), state.steered, state.fence),
        )
        workers = [_text_of(state.workers[place], copies) for place in order]
        return "\n".join((*workers, repr(state.books), repr(rest)))

    def _holders(self) -> set[str]:
        records = self.state.content.get("records", {})
        found = {str(self.record(task).get("nonce", "")) for task in records}
        for worker in self.alive:
            found.update(permit.told.nonce for permit in (*worker.permits.values(), *worker.spare.values()))
        return found


def _text_of(worker: Worker | None, copies: dict[int, int]) -> str:
    if worker is None:
        return "-"
    runs = [
        (
            *(run.nonce, run.task, run.attempt, run.lock, run.state, run.stored, run.acked, run.redelivered),
            *(copies.get(run.copy or 0, -1), run.epoch == worker.epoch, run.conclude),
        )
        for run in worker.runs.values()
    ]
    call: tuple[Any, ...] = ()
    if (sent := worker.sent) is not None:
        said = sent.packed.partition(b',"slots"')[2]
        call = (said, sent.carried, sent.late, sent.arrived, sent.reply)
    renewal: tuple[Any, ...] = ()
    if worker.renewal is not None:
        _, nonces, number = worker.renewal
        renewal = (max(number - worker.call, -2), nonces)
    rest = (worker.permits, worker.spare, worker.passed, sorted(worker.closed), worker.say, worker.leaving)
    return repr((worker.name, runs, call, renewal, worker.offered, rest))
