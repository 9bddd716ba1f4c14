"""Assembles our classes with stand-ins for their connections: the one file that contains their names.

A worker here is `celery_throttle.worker.wiring.Throttling` with the real gate, calls, leases and links on it; Celery's
side of it is the least that its default strategy and our steps ask for.
"""

from __future__ import annotations

import json
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import fields
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, cast

from celery._state import _task_stack  # type: ignore[attr-defined]
from celery.signals import task_revoked
from celery.worker import state
from celery.worker.strategy import default as default_strategy
from kombu.common import QoS
from redis.exceptions import NoScriptError, ResponseError

from celery_throttle import ThrottleControl, clients
from celery_throttle.control.reader import readers
from celery_throttle.control.removal import borrow as borrow_messages
from celery_throttle.store.exchange_reply import Reply
from celery_throttle.store.gate_script import ALONE
from celery_throttle.store.parcel import unpack
from celery_throttle.store.scripts import Call, pack
from celery_throttle.tasks import publish
from celery_throttle.worker import admission, gate, groups, resuming, runs, stopping, user_code, wiring
from celery_throttle.worker.celery_side import parsing, remember, tasks
from celery_throttle.worker.held_back import saving
from celery_throttle.worker.runs import UNDECIDED, WHY, State
from celery_throttle.worker.store_side import calls as calls_module
from celery_throttle.worker.store_side import connecting, leases, link, listener, outbox, wire
from celery_throttle.worker.store_side.renewals import _PUT_BACK, _RENEWED
from tests.simulation.broker import Channel, Letter, tag_of
from tests.simulation.clock import Clock, Fiber, Loop, Timekeeper
from tests.simulation.network import AskingClient, Network, Pipe
from tests.simulation.pool import Job, Pool
from tests.simulation.scene import EXPIRES_MS, LEASE, ResultsAway

__all__ = [
    "FRESH",
    "HERE",
    "Killed",
    "Operator",
    "Worker",
    "answers_to",
    "install",
    "name_of",
    "store_told_of_success",
]

#: Seconds before which no visibility timeout strikes, in this world.
FRESH = 0.05


class Here:
    """The world as the stand-ins reach it; one in each process.

    Attributes:
        worker: the one that acts now.
        network: of the world that is being played.
        errors: that our code caught and logged.
        celery_says: whether Celery itself writes to the result backend now, not the gate.
        doom: how many messages the publisher still sends to the outside before it is killed, None if it lives.
    """

    def __init__(self) -> None:
        self.clock = Clock()
        self.worker: Worker | None = None
        self.network: Any = None
        self.errors: list[str] = []
        self.celery_says = False
        self.doom: int | None = None
        self._numbers = 0

    def to_outside(self) -> None:
        """The publisher sends a message to the broker or the store, or is killed."""
        if self.doom is not None:
            self.doom -= 1
            if self.doom < 0:
                raise Killed

    def reset(self, network: Network) -> None:
        """A new world begins."""
        self.worker, self.network, self._numbers = None, network, 0
        self.errors.clear()
        state.reset_state()

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    @contextmanager
    def having(self, name: str, value: Any) -> Iterator[None]:
        """Set an attribute for a while."""
        before = getattr(self, name)
        setattr(self, name, value)
        try:
            yield
        finally:
            setattr(self, name, before)

    def acting(self, worker: Worker) -> AbstractContextManager[None]:
        return self.having("worker", worker)


HERE = Here()


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


class _Run(runs.Run):
    """One whose place in a set does not depend on where it is in memory."""

    __slots__ = ("_number",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._number = HERE.number()

    def __hash__(self) -> int:
        return self._number


class _Permit(runs.Permit):
    """A permit, and how long the store keeps it for sure.

    Attributes:
        granted_us: when the reply was made for the first time that brought it.
        safe_until_us: until when its lease lasts.
    """

    __slots__ = ("granted_us", "safe_until_us")

    def __init__(self, run: runs.Run) -> None:
        super().__init__(run)
        now_us = HERE.clock.now_us
        self.granted_us, heard_us = HERE.worker.last_heard_us if HERE.worker else (now_us, now_us)
        self.safe_until_us = heard_us + round(LEASE * 1_000_000)


@cache
def install() -> None:
    """Put the world in the place of clocks, threads, connections and signals of this process, for good."""
    here = {
        "Timekeeper": lambda: Timekeeper(HERE.clock),
        "Loop": partial(Loop, HERE.clock),
        "greet": lambda app, settings, groups: None,
        "worker_name": lambda node: f"{HERE.number():08x}",
        "task_revoked": _OwnSignal(),
    }
    for module in (admission, calls_module, gate, leases, link, listener, outbox, runs, saving, stopping, wire):
        vars(module)["monotonic"] = HERE.clock.monotonic
    for module in (resuming, tasks):
        vars(module)["Run"] = _Run
    for module in (gate, resuming):
        vars(module)["Permit"] = _Permit
    vars(admission)["_FRESH"] = FRESH
    # The time in a message is one of Celery's clock, which is that of the machine.
    vars(parsing)["_expires_ms"] = lambda request: EXPIRES_MS if request.expires else None
    vars(wiring).update(here)
    vars(groups)["connection_factory"] = lambda url, keys: partial(Pipe, HERE.network, HERE.worker)
    vars(groups)["make_client"] = lambda url, keys: AskingClient(HERE.network, HERE.worker)
    vars(connecting)["threading"] = SimpleNamespace(Thread=_Thread)
    vars(clients)["Caller"] = _Caller
    vars(publish)["uuid"] = lambda: f"u{HERE.number()}"
    for name in ("celery", "kombu"):  # nothing is written while many seeds are played
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    ours = logging.getLogger("celery_throttle")
    ours.addHandler(_Errors(logging.ERROR))
    ours.setLevel(logging.ERROR)
    ours.propagate = False


class _Thread:
    """A thread that the world starts."""

    def __init__(self, target: Callable[[], None], **_: Any) -> None:
        self._target = target

    def start(self) -> None:
        if HERE.worker is not None:
            HERE.worker.threads.append(self._target)

    def is_alive(self) -> bool:
        """It says when it has ended."""
        return True


class _Caller:
    """For publishers and operators: their calls are carried out at once, or are lost when the world wants it."""

    def __init__(self, url: str, keys: Any = None, most: int = 0) -> None:  # noqa: ARG002 - as the real one
        """All go to the same server, one after the other."""
        self.turn = nullcontext()

    def call(self, call: Call) -> Any:
        HERE.to_outside()
        reply = HERE.network.carry_out(call.packed())
        if isinstance(reply, NoScriptError):
            reply = HERE.network.carry_out(pack(call.eval()))
        if isinstance(reply, Exception):
            raise reply
        return reply

    def post(self, call: Call) -> None:
        with suppress(ResponseError):
            self.call(call)


class _OwnSignal:
    """The signal as one worker's process has it."""

    def __init__(self) -> None:
        task_revoked.connect(self._sent, weak=False, dispatch_uid="simulation")

    def connect(self, receiver: Any, **_: Any) -> None:
        if HERE.worker is not None:
            HERE.worker.revoked_receiver = receiver

    def disconnect(self, receiver: Any, **_: Any) -> None:
        """It ends with the worker."""

    def _sent(self, **about: Any) -> None:
        if HERE.worker is not None and HERE.worker.revoked_receiver is not None:
            HERE.worker.revoked_receiver(**{name: value for name, value in about.items() if name != "signal"})


class _Errors(logging.Handler):
    """Errors that our code logs and survives are violations."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and not isinstance(record.exc_info[1], ResultsAway):
            text = f"{record.exc_info[1]!r}: {self.format(record)}"
            HERE.errors.append(re.sub(" at 0x[0-9a-f]+", "", text))


def _error_unless_killed(error: BaseException, as_error: Callable[[BaseException], Exception]) -> BaseException:
    return error if isinstance(error, Killed) else as_error(error)


# A killed process runs nothing more, but a worker makes an error of what code of users raises.
vars(user_code)["_as_error"] = partial(_error_unless_killed, as_error=user_code._as_error)


class Killed(BaseException):
    """A worker, or a publisher, was killed at its next message."""


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

    Attributes:
        doom: how many messages it still sends to the outside before it is killed, None if it lives.
        last_heard_us: when the last reply that it read was made, for the first time and the last.
        beginning: runs that it reported to the store, since it began to act, as about to begin; and those that go back.
        unsettled: runs whose end it has seen, while the store may not have.
        over_here: tasks that were revoked or have failed, and whose end it has reported before the store has it.
        consumed: every queue that it has consumed.
        prefetch: how many messages it takes for each slot.
        only_copies: attempts whose messages only its call had when the store lost its data.
        withdrawn: tasks that the store took out of their lines for it, while it has not reported them.
    """

    def __init__(self, name: str, app: Any, slots: int, given: Callable[[Job], None], *, has_event_loop: bool) -> None:
        self.name, self.app = name, app
        self.dead = self.stopping = self.finished = False
        self.doom: int | None = None
        self.threads: list[Callable[[], None]] = []
        self.revoked_receiver: Any = None
        self.last_heard_us = HERE.clock.now_us, HERE.clock.now_us
        self._answered_us: dict[int, int] = {}
        self.fiber = Fiber(lambda: None)
        self.channel: Channel | None = None
        self.queues: list[str] = []
        self.consumed: set[str] = set()
        self.prefetch = 2
        self.unsettled: list[Any] = []
        self.over_here: list[str] = []
        self.withdrawn: set[str] = set()
        self.only_copies: set[tuple[str, int]] = set()
        self.beginning: set[Any] = set()
        self.pool = Pool(slots, self, given, has_event_loop=has_event_loop)
        with HERE.acting(self):
            self.hub = SimpleNamespace(on_tick=set(), call_later=self._later)
            worker = SimpleNamespace(app=app, hostname=self.name, pool=self.pool, hub=self.hub)
            self.throttling = cast("Any", wiring.Throttling(worker))
            self.gate: Any = self.throttling.gate
            self.loop: Loop = self.throttling.loop
            self.timekeeper: Timekeeper = self.throttling.timekeeper
            running = self.gate.running
            self._tell_begun, running.report_begun = running.report_begun, self._begins
            self.consumer = self._consumer()
            self.throttling.start()

    def __str__(self) -> str:
        return self.name

    def _consumer(self) -> Any:
        return _Consumer(
            worker=self, app=self.app, hostname=self.name, connection_errors=(ConnectionError,), event_dispatcher=None,
            timer=SimpleNamespace(call_at=None, schedule=SimpleNamespace(queue=[])), apply_eta_task=None,
            disable_rate_limits=True, task_buckets=defaultdict(lambda: None),
            on_task_request=self._arrive, _limit_task=None, _limit_post_eta=None, pool=self.pool,
            controller=SimpleNamespace(state=state), qos=None, task_consumer=None, strategies=None,
        )  # fmt: skip

    def _later(self, delay: float, function: Callable[[], None]) -> None:
        self.timekeeper.later(delay, lambda: self.loop.post(function))

    def outside(self) -> None:
        """It is about to send something to the outside."""
        if self.doom is not None:
            self.doom -= 1
            if self.doom < 0:
                self.dead = True
                raise Killed

    @property
    def pipes(self) -> list[Pipe]:
        return [pipe for pipe in HERE.network.pipes if pipe.worker is self]

    @property
    def blocked(self) -> bool:
        """Whether its main thread waits for the store; its loop turns in another one then."""
        return self.fiber.waits

    @property
    def quiet(self) -> bool:
        """Whether the store has all its rows, and it has read all replies."""
        up = all(calls.link.up for calls in self.gate.groups)
        return up and self.reported and not (self.loop.posted or self.blocked or self.saving)

    @property
    def reported(self) -> bool:
        """Whether the store has everything."""
        return all(calls.idle for calls in self.gate.groups)

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
            f"{said}, posted {len(self.loop.posted)}, blocked {self.blocked}"
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

    def about_to_begin(self, *, or_going_back: bool) -> list[tuple[str, int]]:
        """Return the runs that it reports to the store before the pool runs them in the main process."""
        runs = {run for run in (*self.gate._admission._granted, *self.gate.running.runs) if run.reported_begun}
        runs |= self.beginning if or_going_back else set()
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

    @property
    def permits(self) -> list[Any]:
        return [permit for calls in self.gate.groups for permit in calls.held.values()]

    def holds(self, nonce: str) -> bool:
        """Return whether it has this holder."""
        return any(permit.holder.nonce == nonce for permit in self.permits)

    def knows_alone(self, tag: str | None) -> bool:
        """Return whether this delivery runs with the permit of another, and the store may not have that yet."""
        passed = [each.to.nonce for batch in self._under_way for each in batch.exchange.changed if each.to]
        passed += [each.to.nonce for calls in self.gate.groups for each in calls.outbox._changed if each.to]
        runs = [run for run in self.gate.running.runs if run.request.message.delivery_tag == tag]
        return any(run.permit and (run.permit.holder.nonce != run.nonce or run.nonce in passed) for run in runs)

    @property
    def parking(self) -> list[tuple[str, int]]:
        """Task ids and attempts that it would have parked, or sent back, with the call that is not answered yet."""
        return [(run.id, run.content.attempt) for batch in self._under_way for run in batch.arrived if run.parcel]

    @property
    def going_back(self) -> list[tuple[str, int]]:
        """Task ids and attempts that it will send back: the store has refused the call that did."""
        rows = [run for calls in self.gate.groups for run in calls.outbox.arrived]
        return [(run.id, run.content.attempt) for run in rows if run.pause is not None]

    @property
    def asking(self) -> list[tuple[str, int]]:
        """The same of those that it would have started: they may be parked already."""
        return [(run.id, run.content.attempt) for batch in self._under_way for run in batch.arrived if not run.parcel]

    @property
    def saving(self) -> list[tuple[str, int]]:
        """The same for parked runs, which are acknowledged when that is safe, as the store may just have reported."""
        return [(run.id, run.content.attempt) for run in self.gate.held.of(State.SAVING)]

    @property
    def _under_way(self) -> list[Any]:
        return [calls._under_way[0] for calls in self.gate.groups if calls._under_way is not None]

    def renewed(self, answers: dict[str, int], until_us: int) -> list[tuple[str, int]]:
        """A renewal was carried out: return the tasks and attempts that were put back."""
        found = [(permit, answers.get(permit.holder.nonce)) for permit in self.permits]
        for permit, answer in found:
            if answer in (_RENEWED, _PUT_BACK):
                permit.safe_until_us = max(permit.safe_until_us, until_us)
        return [(permit.holder.task, permit.holder.attempt) for permit, answer in found if answer == _PUT_BACK]

    # -- Celery's side --

    def connect(self, channel: Channel, routes: Any) -> None:
        """The consumer consumes."""
        self.channel = channel
        consumer = self.consumer
        consumer.qos = QoS(channel.basic_qos, channel.prefetch)
        consumer.strategies = _Strategies(consumer)
        consumer.task_consumer = _TaskConsumer(channel, routes)
        self.loop.call(self.throttling.connected, consumer)

    def tell_prefetch(self) -> None:
        """Do a turn of the loop of Celery's consumer."""
        if self.channel is not None and self.consumer.qos.prev != self.consumer.qos.value:
            self.consumer.qos.update()

    def disconnect(self) -> None:
        """Lose the connection of the consumer, in Celery's order."""
        self.pool.forget_unbegun()
        self.loop.call(self.gate.disconnected)
        self.channel = None

    def receive(self, message: Any) -> None:
        """The consumer got a message."""
        strategy = self.consumer.strategies[message.headers["task"]]
        with HERE.having("celery_says", True):
            strategy(message, None, message.ack_log_error, message.reject_log_error, [])

    def _arrive(self, request: Any) -> None:
        with HERE.having("celery_says", False):
            self.throttling.arrive(request)

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

    def hear(self, pipe: Pipe) -> None:
        """Something can be read."""
        callback = self.loop.readers.get(pipe)
        if callback is not None:
            callback()

    def job_says(self, says: Callable[..., None], *args: Any) -> None:
        """The pool calls back."""
        with HERE.having("celery_says", True):
            says(*args)

    def close(self) -> None:
        """The worker is about to stop."""
        self.stopping = True
        self.fiber = Fiber(self.throttling.close)

    def finish(self) -> None:
        """The pool has stopped."""
        self.finished = True
        self.fiber = Fiber(self.throttling.finish)


# Values in a reply of exchange.lua: the number of the call comes first; `unread` is found where grants are read.
_VALUES = ["number", *(each.name for each in fields(Reply) if each.name != "unread")]
_ANSWERS, _WITHDRAWN = len(_VALUES), _VALUES.index("withdrawn")


def _is_exchanged(reply: Any) -> bool:
    return type(reply) is list and len(reply) == _ANSWERS and type(reply[_WITHDRAWN]) is list


class _Consumer(SimpleNamespace):
    """Methods, since our steps wrap them on the object."""

    def add_task_queue(self, queue: str) -> None:
        self.worker.channel.queues.append(queue)
        self.task_consumer.consume(queue)

    def cancel_task_queue(self, queue: str) -> None:
        self.worker.channel.queues.remove(queue)


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
        letters = []
        for lent in borrow_messages(place, nonce, ids[:most])[1]:
            message: Any = unpack(lent.message, None, redelivered=False)
            queue = lent.queue.name
            letters.append(Letter(message.headers, message.properties, message.body, queue, "", queue))
        return letters

    def published(self, nonce: str, task_id: str) -> bool:
        """Say that one of them is; whether it was still lent out."""
        (place,) = readers(self._app)
        return bool(place.ask(place.store.unparked(nonce, "sim", "", "", [task_id], []))[1])

    def unlock(self, task: str, arguments: dict[str, Any], task_id: str) -> None:
        """Take the identity lock away from this call, if it has it, or is to run next."""
        client, identity = self._app.tasks[task]._lock((), arguments)
        if not client.ask(client.store.unlock(identity, task_id)):
            client.ask(client.store.give_up(identity, task_id, ""))


@contextmanager
def in_task(app: Any, request: dict[str, Any]) -> Iterator[Any]:
    """As the body of this task, in its child."""
    task = app.tasks[request["task"]]
    _task_stack.push(task)
    task.push_request(**{**request, "called_directly": False})
    try:
        yield task
    finally:
        task.pop_request()
        _task_stack.pop()


def store_told_of_success(app: Any, request: dict[str, Any]) -> None:
    """Send the child's report of a success."""
    with in_task(app, request) as task:
        remember._succeeded(sender=task)
