"""Two workers with the simulation's real gates, that take the steps of a trace.

Some steps are not taken here: a broken connection to the store, a sign-off, and changes by an operator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from celery.worker import state

from celery_throttle import Limit
from tests.explore.world import World as Model
from tests.explore.worlds import Config
from tests.simulation.clock import Fiber
from tests.simulation.network import Pipe
from tests.simulation.scene import LEASE, PREFIX, App, Kind, Scene
from tests.simulation.server import Server, serving
from tests.simulation.workers import HERE, Worker, install, name_of
from tests.simulation.world import World

__all__ = ["CannotReplay", "Gates", "real_gates"]

_TASK, _QUEUE, _FAR_US = "task", "q", 10**19


class CannotReplay(ValueError):
    """A world, or a step, that real gates are not taken through."""


@contextmanager
def real_gates(config: Config) -> Iterator[Gates]:
    """Start two workers with real gates, and publish nothing."""
    with serving(Server) as server:
        install()
        yield Gates(config, World(0, server, _scene_of(config)))


def _scene_of(config: Config) -> Scene:
    first = config.tasks[0]
    alike = all((task.needs, task.late, task.dedup) == (first.needs, first.late, first.dedup) for task in config.tasks)
    permits = config.permits["gpu"]
    if not alike or first.needs not in ("", "1:gpu") or config.limits != {"gpu": str(permits)} or config.ticks:
        raise CannotReplay(f"{config.name}: only tasks that are alike, with one permit of one limit")
    app = App("explore", broker="memory://", backend="tests.simulation.scene:Results", set_as_current=False)
    app.conf.update(
        throttle_url="redis://127.0.0.1:1/0", throttle_lease=LEASE, throttle_prefix=PREFIX, task_send_sent_event=False,
        worker_send_task_events=False, throttle_on_store_error="hold",
    )  # fmt: skip
    scene = Scene(app, {"gpu": permits}, {})
    dedup, options = first.dedup, {}
    if dedup:
        options = {"on_conflict": dedup.on_conflict, "lock_until": dedup.lock_until, "lock_ttl": dedup.lock_ttl}
    kind = Kind(
        _TASK,
        (("gpu", "", 1),) if first.needs else (),
        late=first.late,
        identity="n" if dedup else "",
        remember=dedup.remember if dedup else 0.0,
    )
    scene.add(kind, **options, **({"limit": Limit("gpu", permits)} if first.needs else {}))
    app.finalize()
    return scene


class Gates:
    """Two workers with real gates."""

    def __init__(self, config: Config, world: World) -> None:
        self.config, self.world = config, world
        world.broker.queues = {_QUEUE: deque()}
        world.queue_of = {_TASK: _QUEUE}
        world.scene.app.revoke = self._revoked
        self._ids: dict[int, str] = {}
        self._at: list[Worker | None] = [None, None]
        self._renewing: dict[int, Fiber] = {}
        for place in (0, 1):
            self._start(str(place))
        for number, task in enumerate(config.tasks):
            if task.dedup is None:
                self._publish(str(number))

    def take(self, step: str, model: Model) -> None:
        """Let this happen; ``model`` is as it was before that.

        Raises:
            CannotReplay: it is not among what can be replayed.
        """
        what, *rest = step.split()
        if what == "visible":
            (copy,) = [copy for copy in model.state.broker if copy.number == int(rest[0])]
            self._visible(copy.at, copy.task)
        elif what == "end":
            self._end(rest[0], model.worker(int(rest[0])).runs[rest[1]].task, rest[2])
        elif what in self._steps:
            if what == "hear" and (sent := model.worker(int(rest[0])).sent) and sent.late:
                self._is_late(rest[0])
            self._steps[what](*rest)
        else:
            raise CannotReplay(f"{step}: not with real gates")

    def running(self) -> list[list[str]]:
        """Return the run in each place, by the model."""
        names = {task_id: f"t{number}" for number, task_id in self._ids.items()}
        return [
            sorted(names[job.task_id] for job in worker.pool.jobs if job.state == "begun") if worker else []
            for worker in self._at
        ]

    @property
    def _steps(self) -> dict[str, Callable[..., None]]:
        return {
            "age": lambda: self.world.pass_time(7_000_000),
            "broker-lost": self._broker_lost,
            "call": self._call,
            "deliver": self._deliver,
            "hear": self._hear,
            "kill": self._kill,
            "lapse": self._lapse,
            "look": self._look,
            "publish": self._publish,
            "renew": self._renew,
            "renewal": self._renewal,
            "rest": lambda: None,
            "revoke": lambda task: self._revoked(self._ids[int(task)]),
            "say": self._say,
            "stray": lambda: self.world.carry_stray(*self.world.network.strays.pop().popleft()),
            "stray-lost": self.world.network.strays.clear,
        }

    def _worker(self, place: str | int) -> Worker:
        worker = self._at[int(place)]
        if worker is None:
            raise CannotReplay(f"no worker is at place {place}")
        return worker

    def _turn(self, worker: Worker, *, hungry: bool = False) -> None:
        """It looks for parked tasks when the trace has that step, and passes no permits on unless the world does."""
        worker.gate.running._passes_on = self.config.passes_on
        for calls in worker.gate.groups:
            calls.hungry, calls.freed = hungry, 0
        self.world.act(worker, worker.turn)

    def _start(self, place: str) -> None:
        slots = self.config.slots[int(place)]
        worker = self._at[int(place)] = self.world.start_worker(slots, [_QUEUE], has_event_loop=True)
        while worker.threads or any(pipe.sent or pipe.replies for pipe in self._pipes(worker)):
            while worker.threads:
                self.world.act(worker, worker.run_thread)
            self._turn(worker)
            for pipe in self._pipes(worker):
                while pipe.sent:
                    self.world.carry(pipe)
                self.world.hear(pipe, len(pipe.replies))
            self._turn(worker)

    def _pipes(self, worker: Worker) -> list[Pipe]:
        return [pipe for pipe in self.world.network.pipes if pipe.worker is worker]

    def _publish(self, number: str) -> None:
        task = self.config.tasks[int(number)]
        arguments = {"key": 1, "n": 1}
        # A caller that names a task awaits it.
        wanted = f"t{number}" if task.dedup is None or task.awaited or task.by_name else None
        if task.by_name:
            app = self.world.scene.app
            app.send_task(_TASK, kwargs=arguments, task_id=wanted, queue=_QUEUE, result_cls=app.AsyncResult)
            identity = f"{_TASK}:1"
            self.world.book.publish(f"t{number}", _TASK, arguments, identity, 0, self.world.clock.now_us)
            self._ids[int(number)] = f"t{number}"
            return
        self.world.publish(_TASK, arguments, _QUEUE, wanted)
        self._ids[int(number)] = self.world._published or f"t{number}"

    def _deliver(self, place: str) -> None:
        worker, world = self._worker(place), self.world
        assert worker.channel is not None, "it has no connection to the broker"
        world.deliver(worker.channel, _QUEUE)
        self._turn(worker)
        self._begin(worker)

    def _call(self, place: str, how: str = "") -> None:
        if how not in ("", "wait", "killed"):
            raise CannotReplay(f"call {how}: not with real gates")
        self._carry(self._worker(place))
        if how == "killed":
            self._kill(place, "lost")
        elif not how:
            self._hear(place)

    def _carry(self, worker: Worker) -> None:
        for pipe in self._pipes(worker):
            while pipe.sent:
                is_call = name_of(pipe.sent[0]) == "exchange"
                self.world.carry(pipe)
                if is_call:
                    return
        raise CannotReplay(f"{worker} has made no call")

    def _hear(self, place: str) -> None:
        worker = self._worker(place)
        for pipe in self._pipes(worker):
            self.world.hear(pipe, len(pipe.replies))
        self._turn(worker)
        self._begin(worker)

    def _begin(self, worker: Worker) -> None:
        """Let the pool begin all jobs that it has."""
        for job in worker.pool.jobs:
            if job.state == "sent":
                self.world.begin(worker, job)
                self.world.accept(worker, job)
        self._turn(worker)

    def _end(self, place: str, task: int, outcome: str) -> None:
        worker = self._worker(place)
        (job,) = [job for job in worker.pool.jobs if job.task_id == self._ids[task] and job.state == "begun"]
        self.world.end(worker, job, outcome)
        self.world.hear_end(worker, job)
        self._turn(worker)

    def _look(self, place: str) -> None:
        self._turn(self._worker(place), hungry=True)
        self._call(place)

    def _is_late(self, place: str) -> None:
        """So much time has passed for this worker alone that its leases may be over."""
        for calls in self._worker(place).gate.groups:
            calls.asked_at -= LEASE

    def _say(self, place: str) -> None:
        """Send the deferred messages."""
        worker = self._worker(place)
        for calls in worker.gate.groups:
            self.world.act(worker, calls.send, 0)

    def _revoked(self, task_id: str) -> None:
        """Send the revoke to all workers."""
        if not all(task.heard for task in self.config.tasks):
            return
        state.revoked.add(task_id)
        entry = self.world.book.entries[task_id]
        for attempt in entry.attempts.values():
            attempt.excuse("revoked")
        for worker in self.world.workers:
            self.world.act(worker, worker.gate.withdraw, [task_id])
            self._turn(worker)

    def _kill(self, place: str, how: str) -> None:
        worker, network = self._worker(place), self.world.network
        calls = [each for pipe in self._pipes(worker) for each in pipe.sent if name_of(each) == "exchange"]
        self.world.kill(worker)
        network.strays = [deque((worker, call) for call in calls)] if how == "stray" else []
        self.world.broker.show(_FAR_US)
        self._start(place)

    def _broker_lost(self, place: str) -> None:
        worker = self._worker(place)
        self.world.lose_broker(worker)
        self.world.broker.show(_FAR_US)
        self._turn(worker)
        self.world.connect_broker(worker, [_QUEUE])
        self._turn(worker)

    def _visible(self, place: int, task: int) -> None:
        channel = self._worker(place).channel
        assert channel is not None, "it has no connection to the broker"
        (delivery, *_) = [each for each in channel.unacked.values() if each.letter.task_id == self._ids[task]]
        self.world.strike(delivery)

    def _lapse(self, task: str) -> None:
        task_id = self._ids[int(task[1:])]
        self.world.network.end_lease(task_id)
        for run in [run for run in self.world.book.running if run.attempt.entry.task_id == task_id]:
            self.world.book.lapse(run, "its lease was lost")

    def _renew(self, place: str) -> None:
        worker = self._worker(place)
        leases: Any = worker._throttling._leases
        group = worker._throttling.groups[0]
        with HERE.acting(worker):
            self._renewing[int(place)] = Fiber(partial(leases.renew, group))

    def _renewal(self, place: str) -> None:
        worker, fiber = self._worker(place), self._renewing.pop(int(place))
        while fiber.waits:
            (ask,) = [ask for ask in self.world.network.asks if ask.worker is worker]
            self.world.carry_ask(ask)
            ask.hear()
            with HERE.acting(worker):
                fiber.go_on()
