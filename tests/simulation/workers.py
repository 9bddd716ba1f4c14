"""Assembles our classes with stand-ins for their connections: the one file that contains their names.

A worker here is `celery_throttle.worker.wiring.Throttling` with the real gate, calls, leases and links on it; Celery's
side of it is the least that its default strategy and our steps ask for.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

from celery._state import _task_stack  # type: ignore[attr-defined]
from celery.signals import task_revoked
from celery.worker import state
from celery.worker.strategy import default as default_strategy
from kombu.common import QoS
from redis.exceptions import NoScriptError

from celery_throttle import ThrottleControl, clients
from celery_throttle.control.reader import readers
from celery_throttle.control.removal import borrow as borrow_messages
from celery_throttle.core.keys import Keys
from celery_throttle.store import scripts
from celery_throttle.store.calls import Store
from celery_throttle.store.draining import Lent
from celery_throttle.store.exchange_reply import Reply
from celery_throttle.store.gate_script import ALONE, gate_text
from celery_throttle.store.parcel import unpack
from celery_throttle.store.scripts import Call, Script
from celery_throttle.tasks import publish
from celery_throttle.worker import admission, gate, groups, resuming, runs, stopping, wiring
from celery_throttle.worker.celery_side import remember, tasks
from celery_throttle.worker.held_back import saving
from celery_throttle.worker.runs import UNDECIDED, WHY, State
from celery_throttle.worker.store_side import link, listener, outbox
from tests.simulation.broker import Channel, Letter, tag_of
from tests.simulation.clock import Clock, Fiber, Loop, Timekeeper
from tests.simulation.network import CLOCK_KEYS, AskingClient, Network, Pipe
from tests.simulation.pool import Job, Pool
from tests.simulation.scene import LEASE, PREFIX, ResultsAway

__all__ = [
    "CHANNEL",
    "FRESH",
    "RECORDS",
    "Here",
    "Operator",
    "Worker",
    "answers_to",
    "installed",
    "leftovers",
    "name_of",
    "reap_calls",
    "script_texts",
    "store_told_of_success",
]

CHANNEL = Keys(PREFIX).wake
#: Seconds before which no visibility timeout strikes, in this world.
FRESH = 0.05
#: Where the store has tasks that hold or wait.
RECORDS = Keys(PREFIX).key("records")


class Here:
    """The world as the stand-ins reach it; one in each process.

    Attributes:
        worker: the one that acts now.
        network: of the world that is being played.
        errors: that our code caught and logged.
        celery_says: whether Celery itself writes to the result backend now, not the gate.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.worker: Worker | None = None
        self.network: Any = None
        self.errors: list[str] = []
        self.celery_says = False
        self._numbers = 0

    def reset(self, network: Network) -> None:
        """A new world begins."""
        self.worker, self.network, self._numbers = None, network, 0
        self.errors.clear()
        state.reset_state()

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def heard_us(self) -> tuple[int, int]:
        """Return when the reply was made that the worker reads now, for the first time and the last."""
        return self.worker.last_heard_us if self.worker is not None else (self.clock.now_us, self.clock.now_us)

    @contextmanager
    def saying(self, *, celery: bool) -> Iterator[None]:
        """Set whether Celery or the gate writes to the result backend now."""
        before, self.celery_says = self.celery_says, celery
        try:
            yield
        finally:
            self.celery_says = before

    @contextmanager
    def acting(self, worker: Worker) -> Iterator[None]:
        before, self.worker = self.worker, worker
        try:
            yield
        finally:
            self.worker = before


def script_texts() -> dict[str, str]:
    """Return every script that was loaded so far, by its SHA1; grows as more are."""
    return _texts


_texts: dict[str, str] = {}


def name_of(command: bytes) -> str:
    """Return which script a call is to."""
    values = command.split(b"\r\n")[2::2]
    if values[0] != b"EVALSHA":
        return values[0].decode()
    which = values[3 + int(values[2]) + 1]  # EVALSHA, script, number of keys, keys, lease, the form or the request
    return ALONE if which.startswith(b"{") else which.decode()


def answers_to(command: bytes, reply: Any) -> dict[str, int]:
    """Return the answer of a renewal to each delivery that it was about."""
    values = command.split(b"\r\n")[2::2]
    said = json.loads(values[3 + int(values[2]) + 2])  # EVALSHA, script, keys, lease, the form, the request
    nonces = [each["nonce"] for each in said["held"]]
    return dict(zip(nonces, reply[0], strict=True))


_RENEWED, _PUT_BACK = 1, 2


class _Run(runs.Run):
    """One whose place in a set does not depend on where it is in memory."""

    __slots__ = ("_number",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._number = _run_numbers()

    def __hash__(self) -> int:
        return self._number


_run_numbers: Callable[[], int]


class _Permit(runs.Permit):
    """A permit, and how long the store keeps it for sure.

    Attributes:
        granted_us: when the reply was made for the first time that brought it.
        safe_until_us: until when its lease lasts.
    """

    __slots__ = ("granted_us", "safe_until_us")

    def __init__(self, run: runs.Run) -> None:
        super().__init__(run)
        self.granted_us, heard_us = _heard_us()
        self.safe_until_us = heard_us + round(LEASE * 1_000_000)


_heard_us: Callable[[], tuple[int, int]]


@contextmanager
def installed(here: Here) -> Iterator[None]:
    """Put the world in the place of clocks, threads, connections and signals."""
    global _run_numbers, _heard_us
    _run_numbers, _heard_us = here.number, here.heard_us
    now = here.clock.monotonic
    with ExitStack() as stack:
        put = partial(_put, stack)
        put(scripts, "gate_text", _with_given_time(gate_text))
        Script.of_gate.cache_clear()
        for module in (admission, gate, link, listener, outbox, runs, saving, stopping):
            put(module, "monotonic", now)
        for module in (resuming, tasks):
            put(module, "Run", _Run)
        for module in (gate, resuming):
            put(module, "Permit", _Permit)
        put(admission, "_FRESH", FRESH)
        put(wiring, "Timekeeper", lambda: Timekeeper(here.clock))
        put(wiring, "Loop", partial(Loop, here.clock))
        put(wiring, "greet", lambda app, settings, groups: None)
        put(wiring, "worker_name", lambda node: f"{here.number():08x}")
        put(wiring, "task_revoked", _OwnSignal(here))
        put(groups, "connection_factory", lambda url, keys: partial(_new_pipe, here, here.worker))
        put(groups, "make_client", lambda url, keys: AskingClient(here.network, here.worker))
        put(link, "threading", SimpleNamespace(Thread=partial(_Thread, here)))
        put(clients, "Caller", partial(_Caller, here))
        put(publish, "uuid", lambda: f"u{here.number()}")
        stack.enter_context(_errors_noted(here))
        yield
    Script.of_gate.cache_clear()


def _put(stack: ExitStack, where: Any, name: str, new: Any) -> None:
    stack.enter_context(mock.patch.object(where, name, new))


_BROKEN = {
    "caps": ("return rule.permits - rule.used >= ", "return 1 or "),
    "rates": ("start = math.max(start, ", "start = math.min(start, "),
    "ends": ("if not record or record.nonce ~= nonce then return nil end", "if true then return nil end"),
    "locks": ("rcall('HDEL', KEYS[13], identity)", ""),
}


def _with_given_time(gate_text: Callable[[str], str]) -> Callable[[str], str]:
    given = f"('MGET', '{CLOCK_KEYS[0]}', '{CLOCK_KEYS[1]}')"

    def with_given_time(name: str) -> str:
        text = gate_text(name).replace("('TIME')", given)
        right, wrong = _BROKEN.get(os.environ.get("SIMULATION_BREAKS", ""), ("", ""))  # to see that it is noticed
        assert name != ALONE or right in text, "there is nothing of this to break"
        text = text.replace(right, wrong) if right else text
        sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        _texts[sha] = text
        return text

    return with_given_time


def _new_pipe(here: Here, worker: Any) -> Pipe:
    return Pipe(here.network, worker)


class _Thread:
    """A thread that the world starts."""

    def __init__(self, here: Here, target: Callable[[], None], **_: Any) -> None:
        self._here, self._target = here, target

    def start(self) -> None:
        if self._here.worker is not None:
            self._here.worker.threads.append(self._target)


class _Caller:
    """For publishers and operators: their calls are carried out at once, or are lost when the world wants it."""

    def __init__(self, here: Here, url: str, keys: Any = None) -> None:  # noqa: ARG002
        self._here = here

    def call(self, call: Call) -> Any:
        reply = self._here.network.carry_out(call.packed())
        if isinstance(reply, NoScriptError):
            reply = self._here.network.carry_out(scripts.pack(call.eval()))
        if isinstance(reply, Exception):
            raise reply
        return reply


class _OwnSignal:
    """The signal as one worker's process has it."""

    def __init__(self, here: Here) -> None:
        self._here = here
        task_revoked.connect(self._sent, weak=False, dispatch_uid="simulation")

    def connect(self, receiver: Any, **_: Any) -> None:
        if self._here.worker is not None:
            self._here.worker.revoked_receiver = receiver

    def disconnect(self, receiver: Any, **_: Any) -> None:
        """It ends with the worker."""

    def _sent(self, **about: Any) -> None:
        worker = self._here.worker
        if worker is not None and worker.revoked_receiver is not None:
            worker.revoked_receiver(**{name: value for name, value in about.items() if name != "signal"})


@contextmanager
def _errors_noted(here: Here) -> Iterator[None]:
    """Errors that our code logs and survives are violations; nothing else is written while many seeds are played."""
    handler = _Errors(here)
    ours, theirs = logging.getLogger("celery_throttle"), [logging.getLogger(name) for name in ("celery", "kombu")]
    before = ours.level, ours.propagate, [each.level for each in theirs]
    ours.addHandler(handler)
    ours.setLevel(logging.ERROR)
    ours.propagate = False
    for each in theirs:
        each.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.level, ours.propagate = before[:2]
        for each, level in zip(theirs, before[2], strict=True):
            each.setLevel(level)


class _Errors(logging.Handler):
    def __init__(self, here: Here) -> None:
        super().__init__(logging.ERROR)
        self._here = here

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and not isinstance(record.exc_info[1], ResultsAway):
            text = f"{record.exc_info[1]!r}: {self.format(record)}"
            self._here.errors.append(re.sub(" at 0x[0-9a-f]+", "", text))


class _Strategies(dict[str, Any]):
    """Made when they are wanted."""

    def __init__(self, consumer: Any) -> None:
        super().__init__()
        self._consumer = consumer

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self._consumer.app.tasks else default

    def __missing__(self, name: str) -> Any:
        app = self._consumer.app
        strategy = self[name] = default_strategy(app.tasks[name], app, self._consumer)
        return strategy


class Worker:
    """One worker process.

    Args:
        here: the world.
        name: its own.
        app: the Celery app.
        slots: of its pool.
        has_event_loop: as the pool of prefork has.
        given: called with each job of the pool.

    Attributes:
        doom: how many messages it still sends to the outside before it is killed, None if it lives.
        last_heard_us: when the last reply that it read was made, for the first time and the last.
        beginning: runs that it reported to the store, since it began to act, as about to begin; and those that go back.
        unsettled: runs whose end it has seen, while the store may not have.
        over_here: tasks that were revoked or have failed, and whose end it has reported before the store has it.
        consumed: every queue that it has consumed.
        prefetch: how many messages it takes for each slot.
        forgotten: holders that its pool has dropped with a broker connection; their leases end them.
        only_copies: attempts whose messages only its call had when the store lost its data.
        withdrawn: tasks that the store took out of their lines for it, while it has not reported them.
    """

    def __init__(
        self, here: Here, name: str, app: Any, slots: int, given: Callable[[Job], None], *, has_event_loop: bool
    ) -> None:
        self.here, self.name, self.app = here, name, app
        self.dead = self.stopping = self.finished = False
        self.doom: int | None = None
        self.threads: list[Callable[[], None]] = []
        self.revoked_receiver: Any = None
        self.last_heard_us = here.clock.now_us, here.clock.now_us
        self._answered_us: dict[int, int] = {}
        self.fiber: Fiber | None = None
        self.channel: Channel | None = None
        self.queues: list[str] = []
        self.consumed: set[str] = set()
        self.prefetch = 2
        self.unsettled: list[Any] = []
        self.over_here: list[str] = []
        self.withdrawn: set[str] = set()
        self.forgotten: set[str] = set()
        self.only_copies: set[tuple[str, int]] = set()
        self.beginning: set[Any] = set()
        self.pool = Pool(slots, self, here.network.outside, given, has_event_loop=has_event_loop)
        with here.acting(self):
            self.hub = SimpleNamespace(on_tick=set(), call_later=self._later)
            self._throttling: Any = wiring.Throttling(
                SimpleNamespace(app=app, hostname=self.name, pool=self.pool, hub=self.hub)
            )
            running = self.gate.running
            self._tell_begun, running.report_begun = running.report_begun, self._begins
            self.consumer = self._consumer()
            self._throttling.start()

    def __str__(self) -> str:
        return self.name

    def _consumer(self) -> Any:
        consumer = _Consumer(
            change_queues=self._queues_become,
            app=self.app, hostname=self.name, connection_errors=(ConnectionError,), event_dispatcher=None,
            timer=SimpleNamespace(call_at=None), apply_eta_task=None, disable_rate_limits=True, task_buckets={},
            on_task_request=self._arrive, _limit_task=None, _limit_post_eta=None, pool=self.pool,
            controller=SimpleNamespace(state=state), qos=None, task_consumer=None, strategies=None,
        )  # fmt: skip
        consumer.task_buckets = _NoBuckets()
        return consumer

    def _later(self, delay: float, function: Callable[[], None]) -> None:
        self.timekeeper.later(delay, lambda: self.loop.post(function))

    def _queues_become(self, change: Callable[[list[str], str], None], queue: str) -> None:
        if self.channel is not None:
            change(self.channel.queues, queue)

    @property
    def loop(self) -> Loop:
        loop: Loop = self._throttling.loop
        return loop

    @property
    def timekeeper(self) -> Timekeeper:
        timekeeper: Timekeeper = self._throttling.timekeeper
        return timekeeper

    @property
    def blocked(self) -> bool:
        """Whether its main thread waits for the store; its loop turns in another one then."""
        return self.fiber is not None and self.fiber.waits

    def can_go_on(self, now_us: int) -> bool:
        """Whether its main thread waits no longer."""
        return self.fiber is not None and self.fiber.can_go_on(now_us)

    @property
    def quiet(self) -> bool:
        """Return whether the store has all its rows."""
        if self.loop.posted or self.blocked:
            return False
        return not self.gate.held.count(State.SAVING) and all(
            calls.link.up and calls.idle for calls in self.gate.groups
        )

    @property
    def gate(self) -> Any:
        return self._throttling.gate

    @property
    def reported(self) -> bool:
        """Return whether the store has everything."""
        return all(calls.idle for calls in self.gate.groups)

    @property
    def gave_up(self) -> bool:
        """Whether it has waited for the store for as long as a worker does that stops."""
        return bool(self._throttling._stopping._left <= 0)

    def inside(self) -> str:
        """The state of the worker, for the reader of a violation."""
        gate = self.gate
        where = {
            "waiting": gate.held.waiting, "undecided": gate.held.of(*UNDECIDED),
            "granted": gate._admission._granted, "later": gate.held.of(*WHY), "running": gate.running.runs,
        }  # fmt: skip
        said = ", ".join(f"{name} {[run.request.id for run in runs]}" for name, runs in where.items())
        return (
            f"{self}: {self.free_slots} of {self.pool.num_processes} free, closed {sorted(gate._closed._buckets)}, "
            f"{said}, posted {len(self.loop.posted)}, blocked {self.blocked}, {list(map(_unsaid, gate.groups))}"
        )

    @property
    def free_slots(self) -> int:
        """How many tasks it would take now."""
        return int(self.gate.running.free_slots)

    @property
    def wait_as_in_celery(self) -> list[str]:
        """Those that wait here for a slot, as they would without limits: theirs have room and no line."""
        gate = self.gate
        return [
            run.request.id for run in gate.held.waiting if self.free_slots <= 0 and not gate._closed.keep_waiting(run)
        ]

    @property
    def told_begun(self) -> list[tuple[str, int]]:
        """Return the runs that it reports to the store before the pool runs them in the main process."""
        return self._named({*self._reported_begun, *self.beginning})

    @property
    def about_to_begin(self) -> list[tuple[str, int]]:
        """The same, without those that go back in line."""
        return self._named(self._reported_begun)

    @property
    def _reported_begun(self) -> set[Any]:
        return {run for run in (*self.gate._admission._granted, *self.gate.running.runs) if run.reported_begun}

    @staticmethod
    def _named(runs: set[Any]) -> list[tuple[str, int]]:
        return sorted((run.request.id, int(run.request.request_dict.get("retries") or 0)) for run in runs)

    def begin_to_act(self) -> None:
        """Note the runs that go back in line: their messages are only here, even if it is killed now."""
        self.beginning.clear()
        for calls in self.gate.groups:
            returning = calls.outbox.arrived + (calls._under_way[0].arrived if calls._under_way else [])
            self.beginning.update(run for run in returning if run.reported_begun)

    def _begins(self, run: Any) -> None:
        self.beginning.add(run)
        self._tell_begun(run)

    def permit_of(self, request: Any) -> Any:
        """Return the permit of a request, None if it needs nothing."""
        return next((run.permit for run in self.gate.running.runs if run.request is request), None)

    @property
    def name_in_store(self) -> str:
        """As it begins every nonce."""
        return str(self.gate.groups[0].worker)

    def holds(self, nonce: str) -> bool:
        """Return whether it has this holder."""
        held = [permit for calls in self.gate.groups for permit in calls.held.values()]
        return nonce in self.forgotten or any(permit.holder.nonce == nonce for permit in held)

    def knows_alone(self, tag: int) -> bool:
        """Return whether this delivery runs with the permit of another, and the store may not have that yet."""
        passed = [each.to.nonce for batch in self._under_way for each in batch.exchange.changed if each.to]
        passed += [each.to.nonce for calls in self.gate.groups for each in calls.outbox._changed if each.to]
        runs = [run for run in self.gate.running.runs if run.request.message.delivery_tag == str(tag)]
        return any(run.permit and (run.permit.holder.nonce != run.nonce or run.nonce in passed) for run in runs)

    @property
    def parking(self) -> list[tuple[str, int]]:
        """Task ids and attempts that it would have parked, or sent back, with the call that is not answered yet."""
        return [(run.request.id, run.attempt) for batch in self._under_way for run in batch.arrived if run.parcel]

    @property
    def going_back(self) -> list[tuple[str, int]]:
        """Task ids and attempts that it will send back: the store has refused the call that did."""
        rows = [run for calls in self.gate.groups for run in calls.outbox.arrived]
        return [(run.request.id, run.attempt) for run in rows if run.pause is not None]

    @property
    def asking(self) -> list[tuple[str, int]]:
        """The same of those that it would have started: they may be parked already."""
        return [(run.request.id, run.attempt) for batch in self._under_way for run in batch.arrived if not run.parcel]

    @property
    def saving(self) -> list[tuple[str, int]]:
        """The same for parked runs, which are acknowledged when that is safe, as the store may just have reported."""
        return [(run.request.id, run.attempt) for run in self.gate.held.of(State.SAVING)]

    @property
    def _under_way(self) -> list[Any]:
        return [calls._under_way[0] for calls in self.gate.groups if calls._under_way is not None]

    def lost_permits(self) -> None:
        """The store has lost the permits that are held here."""
        for calls in self.gate.groups:
            for permit in calls.held.values():
                permit.safe_until_us = 0

    def renewed(self, answers: dict[str, int], until_us: int) -> list[tuple[str, int]]:
        """A renewal was carried out: return the tasks and attempts that were put back."""
        put_back = []
        for calls in self.gate.groups:
            for permit in calls.held.values():
                answer = answers.get(permit.holder.nonce)
                if answer in (_RENEWED, _PUT_BACK):
                    permit.safe_until_us = max(permit.safe_until_us, until_us)
                if answer == _PUT_BACK:
                    put_back.append((permit.holder.task, permit.holder.attempt))
        return put_back

    # -- Celery's side --

    def connect(self, channel: Channel, routes: Any) -> None:
        """The consumer consumes."""
        self.channel = channel
        consumer = self.consumer
        consumer.qos = QoS(channel.basic_qos, channel.prefetch)
        consumer.strategies = _Strategies(consumer)
        consumer.task_consumer = _TaskConsumer(channel, routes)
        with self.here.acting(self):
            self._throttling.loop.call(self._throttling.connected, consumer)
        self._tell_prefetch()

    def _tell_prefetch(self) -> None:
        """Do a turn of the loop of Celery's consumer."""
        if self.channel is not None and self.consumer.qos.prev != self.consumer.qos.value:
            self.consumer.qos.update()

    def disconnect(self) -> list[Job]:
        """Lose the connection of the consumer, in Celery's order. Return the jobs that the pool dropped."""
        with self.here.acting(self):
            gone = self.pool.flush()
            for permit in (job.permit for job in gone if job.permit is not None):
                self.forgotten.add(permit.holder.nonce)
                if permit.run is not None:  # a call may yet report that the permit was passed on to it
                    self.forgotten.add(permit.run.nonce)
            self._throttling.loop.call(self.gate.disconnected)
        self.channel = None
        return gone

    def receive(self, message: Any) -> None:
        """The consumer got a message."""
        with self.here.acting(self):
            strategy = self.consumer.strategies[message.headers["task"]]
            with self.here.saying(celery=True):
                strategy(message, None, message.ack_log_error, message.reject_log_error, [])
        self._tell_prefetch()

    def _arrive(self, request: Any) -> None:
        with self.here.saying(celery=False):
            self._throttling.arrive(request)

    def change_queues(self, queue: str, *, add: bool) -> None:
        """Act as `add_consumer` and `cancel_consumer` do."""
        with self.here.acting(self):
            (self.consumer.add_task_queue if add else self.consumer.cancel_task_queue)(queue)

    def _do(self, function: Callable[..., None], *args: Any) -> None:
        with self.here.acting(self):
            function(*args)
        self._tell_prefetch()

    def _do_and_wait(self, function: Callable[[], None]) -> None:
        with self.here.acting(self):
            self.fiber = Fiber(function)
        self._tell_prefetch()

    def answered(self, now_us: int, command: bytes, reply: Any) -> None:
        """The store has answered a call of this worker; the same one may be answered again."""
        if name_of(command) == "exchange" and type(reply) is list and type(reply[0]) is int:
            assert _is_exchanged(reply), f"no answer of exchange.lua in a known form: {reply!r}"
        if _is_exchanged(reply):
            self._answered_us.setdefault(reply[0], now_us)
            self.withdrawn.update(task.decode() for task, _ in reply[_WITHDRAWN])

    def hears_of(self, made_us: int, reply: Any) -> None:
        """Read an answer."""
        again = _is_exchanged(reply)
        self.last_heard_us = self._answered_us[reply[0]] if again else made_us, made_us

    def turn(self) -> None:
        self._do(self.loop.turn)

    def hear(self, pipe: Pipe) -> None:
        """Something can be read."""
        callback = self.loop.readers.get(pipe)
        if callback is not None:
            self._do(callback)

    def run_timer(self) -> None:
        with self.here.acting(self):
            self.timekeeper.run()

    def run_thread(self) -> None:
        self._do(self.threads.pop(0))

    def job_says(self, says: Callable[..., None], *args: Any) -> None:
        """The pool calls back."""
        with self.here.saying(celery=True):
            self._do(says, *args)

    def close(self) -> None:
        """The worker is about to stop."""
        self.stopping = True
        self._do_and_wait(self._throttling.close)

    def finish(self) -> None:
        """The pool has stopped."""
        self.finished = True
        self._do_and_wait(self._throttling.finish)

    def go_on(self) -> None:
        """Continue its main thread: the awaited reply is there."""
        if self.fiber is not None:
            with self.here.acting(self):
                self.fiber.go_on()


# Values in a reply of exchange.lua: the number of the call comes first; `unread` is found where grants are read.
_VALUES = ["number", *(each.name for each in fields(Reply) if each.name != "unread")]
_ANSWERS, _WITHDRAWN = len(_VALUES), _VALUES.index("withdrawn")


def _is_exchanged(reply: Any) -> bool:
    return type(reply) is list and len(reply) == _ANSWERS and type(reply[_WITHDRAWN]) is list


def _unsaid(calls: Any) -> str:
    box = calls.outbox
    counts = {
        name: len(getattr(box, name))
        for name in ("arrived", "_changed", "_gone", "_acknowledging", "_unacked", "_spare", "_passed")
    }
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return (
        f"up {calls.link.up}, call {calls.number}, under way {calls._under_way is not None}, paused {calls.paused}, "
        f"hungry {calls.hungry}, holds {[permit.holder.task for permit in calls.held.values()]}, {said or 'all said'}"
    )


class _Consumer(SimpleNamespace):
    """Methods, since our steps wrap them on the object."""

    def add_task_queue(self, queue: str) -> None:
        self.change_queues(list.append, queue)
        if self.task_consumer is not None:
            self.task_consumer.consume(queue)

    def cancel_task_queue(self, queue: str) -> None:
        self.change_queues(list.remove, queue)


class _NoBuckets(dict[str, Any]):
    def __missing__(self, name: str) -> None:
        return None


class _TaskConsumer:
    """The queues of a consumer, as kombu's has them."""

    channel = None

    def __init__(self, channel: Channel, routes: Any) -> None:
        self._channel, self._routes = channel, routes
        self._active_tags = {name: tag_of(name) for name in channel.queues}

    def consume(self, name: str) -> None:
        """Consume one more queue."""
        self._active_tags[name] = self._basic_consume(self._queue(name))

    def _basic_consume(self, queue: Any) -> str:
        return tag_of(queue.name)

    @property
    def queues(self) -> list[Any]:
        return [self._queue(name) for name in self._channel.queues]

    def _queue(self, name: str) -> Any:
        exchange, key = self._routes.get(name, ("", name))
        pattern = key.partition(".")[0] + ".#" if exchange else key
        return SimpleNamespace(name=name, exchange=SimpleNamespace(name=exchange), routing_key=pattern)


def _letter(lent: Lent) -> Letter:
    message = unpack(lent.message, None, redelivered=False)
    headers: Any = message.headers
    body: Any = message.body
    ids = headers["id"], headers["task"], headers.get("retries") or 0
    return Letter(*ids, headers, message.properties, body, lent.queue.name, "", lent.queue.name)


class Operator:
    """Steers limits as an operator does."""

    def __init__(self, app: Any) -> None:
        self._app, self._throttle = app, ThrottleControl(app)

    def say(self, limit: str, what: str, *args: Any, **options: Any) -> None:
        control = self._throttle.limit(limit)
        getattr(control, what)(*args, **options, by="sim")

    def drop(self, task_id: str) -> bool:
        return self._throttle.drop(task_id, by="sim")

    def borrow(self, nonce: str, most: int) -> list[Letter]:
        """Borrow the oldest that are parked, as a drain does, to be published again."""
        (place,) = readers(self._app)
        ids = [each.task for each in sorted(place.parked_ids(None)) if each.what == "runs"]
        return [_letter(each) for each in borrow_messages(place, nonce, ids[:most])[1]]

    def published(self, nonce: str, task_id: str) -> bool:
        """Say that one of them is; whether it was still lent out."""
        (place,) = readers(self._app)
        return bool(place.ask(place.store.unparked(nonce, "sim", "", "", [task_id], []))[1])

    def unlock(self, task: str, arguments: dict[str, Any], task_id: str) -> None:
        """Take the identity lock away from this call, if it has it, or is to run next."""
        client, identity = self._app.tasks[task]._lock((), arguments)
        if not client.ask(client.store.unlock(identity, task_id)):
            client.ask(client.store.give_up(identity, task_id, ""))


def store_told_of_success(app: Any, request: dict[str, Any]) -> None:
    """Send the child's report of a success."""
    task = app.tasks.get(request["task"])
    if task is not None:
        task.push_request(**request)
        try:
            remember._succeeded(sender=task)
        finally:
            task.pop_request()


@contextmanager
def in_task(app: Any, request: dict[str, Any]) -> Iterator[None]:
    """As the body of this task, in its child."""
    task = app.tasks[request["task"]]
    _task_stack.push(task)
    task.push_request(**{**request, "called_directly": False})
    try:
        yield
    finally:
        task.pop_request()
        _task_stack.pop()


def reap_calls() -> list[bytes]:
    """Make the calls of the beat task."""
    return [Store(Keys(PREFIX), LEASE).reap(200).packed()]


def leftovers(contents: dict[str, Any]) -> dict[str, Any]:
    """Return the content of the store that should not stay when all work is done."""
    stays = {b"birth", b"ticket", b"stamp", b"settling", b"moment", b"errors"}
    left = {}
    for key, value in contents.items():
        name = key.partition("}:")[2].split(":")[1]
        # Declarations, changes, and counts, which end by the server's own clock.
        if name in ("limits", "audit", "minutes", "quarters", "totals"):
            continue
        remains = [field for field, _ in value if field not in stays] if name == "meta" else value
        if remains:
            left[key] = remains
    return left
