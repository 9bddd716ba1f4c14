"""The model beside two workers with the simulation's real gates: both take the same steps, and the same tasks run.

Some steps are not taken with real gates: a broken connection to the store, a sign-off, and changes by an operator.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from random import Random
from typing import Any

from celery_throttle import Limit
from tests.explore.steps import begin, parts_of, possible, take
from tests.explore.store import Server as Scripts
from tests.explore.world import World as Model
from tests.explore.worlds import Config
from tests.simulation.clock import Fiber
from tests.simulation.scene import LEASE, Kind, Scene, make_app
from tests.simulation.server import Server, serving
from tests.simulation.workers import HERE, Worker, install, name_of
from tests.simulation.world import World

__all__ = ["CannotReplay", "Drift", "replay_beside", "walk_beside"]

_TASK, _QUEUE, _FAR_US = "task", "q", 10**19


class CannotReplay(ValueError):
    """A world, or a step, that real gates are not taken through."""


class Drift(Exception):
    """The model and the real gates differ."""


def _scene_of(config: Config) -> Scene:
    first = config.tasks[0]
    alike = all((task.needs, task.late, task.dedup) == (first.needs, first.late, first.dedup) for task in config.tasks)
    permits = config.permits["gpu"]
    if not alike or first.needs not in ("", "1:gpu") or config.limits != {"gpu": str(permits)} or config.ticks:
        raise CannotReplay(f"{config.name}: only tasks that are alike, with one permit of one limit")
    kind = Kind(_TASK, (Limit("gpu", permits),) if first.needs else (), late=first.late)
    options: dict[str, Any] = {}
    if dedup := first.dedup:
        kind = kind._replace(identity="n", remember=dedup.remember)
        options = {"on_conflict": dedup.on_conflict, "lock_until": dedup.lock_until, "lock_ttl": dedup.lock_ttl}
    scene = Scene(make_app())
    scene.add(kind, **options)
    scene.app.finalize()
    return scene


class _Gates:
    """Two workers with real gates; each step is a method."""

    def __init__(self, config: Config, world: World) -> None:
        self.config, self.world = config, world
        world.broker.queues = {_QUEUE: deque()}
        world.queue_of = {_TASK: _QUEUE}
        world.scene.app.revoke = self._revoked
        self._ids: dict[int, str] = {}
        self._renewing: dict[int, Fiber] = {}
        self._at = [self._start(place) for place in (0, 1)]
        for number, task in enumerate(config.tasks):
            if task.dedup is None:
                self._publish(number)

    def take(self, step: str, model: Model) -> None:
        """Let this happen; ``model`` is as it was before that."""
        what, *rest = parts_of(step)
        if what == "visible":
            (copy,) = [copy for copy in model.state.broker if copy.number == rest[0]]
            rest = [copy.at, copy.task]
        elif what == "end":
            rest[1] = model.worker(rest[0]).runs[rest[1]].task
        elif what == "hear" and (sent := model.worker(rest[0]).sent) and sent.late:
            # So much time has passed for this worker alone that its leases may be over.
            for calls in self._at[rest[0]].gate.groups:
                calls.asked_at -= LEASE
        method = getattr(self, "_" + what.replace("-", "_"), None)
        if method is None or (what == "publish" and rest[1:]):
            raise CannotReplay(f"{step}: not with real gates")
        method(*rest)

    def running(self) -> list[list[str]]:
        """Return the run in each place, by the model."""
        names = {task_id: f"t{number}" for number, task_id in self._ids.items()}
        begun = [[job for job in worker.pool.jobs if job.state == "begun"] for worker in self._at]
        return [sorted(names[job.task_id] for job in jobs) for jobs in begun]

    def _turn(self, worker: Worker, *, hungry: bool = False) -> None:
        """It looks for parked tasks when the trace has that step, and passes no permits on unless the world does."""
        worker.gate.running._passes_on = self.config.passes_on
        for calls in worker.gate.groups:
            calls.hungry, calls.freed = hungry, 0
        self.world.act(worker, worker.loop.turn)

    def _start(self, place: int) -> Worker:
        worker = self.world.start_worker(self.config.slots[place], [_QUEUE], has_event_loop=True)
        while worker.threads or any(pipe.sent or pipe.replies for pipe in worker.pipes):
            while worker.threads:
                self.world.act(worker, worker.threads.pop(0))
            self._turn(worker)
            for pipe in worker.pipes:
                while pipe.sent:
                    self.world.carry(pipe)
                self.world.hear(pipe, len(pipe.replies))
            self._turn(worker)
        return worker

    def _publish(self, number: int) -> None:
        task, world = self.config.tasks[number], self.world
        arguments, task_id = {"key": 1, "n": 1}, f"t{number}"
        if task.by_name:
            app = world.scene.app
            app.send_task(_TASK, kwargs=arguments, task_id=task_id, queue=_QUEUE, result_cls=app.AsyncResult)
            world.book.publish(task_id, world.scene.kinds[_TASK], arguments, 0)
        else:  # a caller that names a task awaits it
            world.publish(_TASK, arguments, _QUEUE, task_id if task.dedup is None or task.awaited else None)
            task_id = world.published or task_id
        self._ids[number] = task_id

    def _deliver(self, place: int) -> None:
        channel = self._at[place].channel
        assert channel is not None, "it has no connection to the broker"
        self.world.deliver(channel, _QUEUE)
        self._begin(self._at[place])

    def _call(self, place: int, how: str = "") -> None:
        if how not in ("", "wait", "killed"):
            raise CannotReplay(f"call {how}: not with real gates")
        pipe = next((pipe for pipe in self._at[place].pipes if pipe.sent), None)
        if pipe is None:
            raise CannotReplay(f"{self._at[place]} has made no call")
        is_call = False
        while pipe.sent and not is_call:
            is_call = name_of(pipe.sent[0]) == "exchange"
            self.world.carry(pipe)
        if how == "killed":
            self._kill(place, "lost")
        elif not how:
            self._hear(place)

    def _hear(self, place: int) -> None:
        for pipe in self._at[place].pipes:
            self.world.hear(pipe, len(pipe.replies))
        self._begin(self._at[place])

    def _begin(self, worker: Worker) -> None:
        """Let the pool begin all jobs that it has."""
        self._turn(worker)
        for job in worker.pool.jobs:
            if job.state == "sent":
                self.world.begin(job)
                self.world.accept(job)
        self._turn(worker)

    def _end(self, place: int, task: int, outcome: str) -> None:
        worker = self._at[place]
        (job,) = [job for job in worker.pool.jobs if job.task_id == self._ids[task] and job.state == "begun"]
        self.world.end(job, outcome)
        self.world.hear_end(job)
        self._turn(worker)

    def _look(self, place: int) -> None:
        self._turn(self._at[place], hungry=True)
        self._call(place)

    def _say(self, place: int) -> None:
        """Send the deferred messages."""
        for calls in self._at[place].gate.groups:
            self.world.act(self._at[place], calls.send, 0)

    def _revoke(self, task: int) -> None:
        self._revoked(self._ids[task])

    def _revoked(self, task_id: str) -> None:
        """Send the revoke to all workers."""
        self.world.revoke(task_id)
        for worker in self.world.workers:
            self.world.act(worker, worker.gate.withdraw, [task_id])
            self._turn(worker)

    def _kill(self, place: int, how: str) -> None:
        worker, network = self._at[place], self.world.network
        calls = [each for pipe in worker.pipes for each in pipe.sent if name_of(each) == "exchange"]
        self.world.kill(worker)
        network.strays = [deque((worker, call) for call in calls)] if how == "stray" else []
        self.world.broker.show(_FAR_US)
        self._at[place] = self._start(place)

    def _stray(self) -> None:
        self.world.carry_stray(*self.world.network.strays.pop().popleft())

    def _stray_lost(self) -> None:
        self.world.network.strays.clear()

    def _broker_lost(self, place: int) -> None:
        worker = self._at[place]
        self.world.lose_broker(worker)
        self.world.broker.show(_FAR_US)
        self._turn(worker)
        self.world.connect_broker(worker, [_QUEUE])
        self._turn(worker)

    def _visible(self, place: int, task: int) -> None:
        channel = self._at[place].channel
        assert channel is not None, "it has no connection to the broker"
        self.world.strike(next(each for each in channel.unacked.values() if each.letter.task_id == self._ids[task]))

    def _lapse(self, task: str) -> None:
        task_id = self._ids[int(task[1:])]
        self.world.network.end_lease(task_id)
        for run in [run for run in self.world.book.running if run.entry.task_id == task_id]:
            self.world.book.lapse(run, "its lease was lost")

    def _renew(self, place: int) -> None:
        worker = self._at[place]
        leases: Any = worker.throttling._leases
        with HERE.acting(worker):
            self._renewing[place] = Fiber(partial(leases.renew, worker.throttling.groups[0]))

    def _renewal(self, place: int) -> None:
        worker, fiber = self._at[place], self._renewing.pop(place)
        while fiber.waits:
            (ask,) = [ask for ask in self.world.network.asks if ask.worker is worker]
            self.world.carry_ask(ask)
            ask.hear()
            with HERE.acting(worker):
                fiber.go_on()

    def _age(self) -> None:
        self.world.pass_time(7_000_000)

    def _rest(self) -> None:
        """Nothing is left to do."""


def replay_beside(config: Config, server: Scripts, trace: tuple[str, ...]) -> None:
    """Take the model and real gates through these steps."""
    model = Model(config, server)
    begin(model)
    with serving(Server) as own:
        install()
        gates = _Gates(config, World(0, own, _scene_of(config)))
        for number, step in enumerate(trace, 1):
            gates.take(step, model)
            if step != "rest":
                take(model, step)
            runs = [worker.runs.values() if worker else () for worker in model.state.workers]
            modelled = [sorted(run.task_id for run in each if run.state == "running") for each in runs]
            if modelled != gates.running():
                raise Drift(f"after step {number}, {step}: real gates run {gates.running()}, the model {modelled}")


def walk_beside(config: Config, server: Scripts, seed: int, most: int = 30) -> bool:
    """Take both through steps that a seed chooses; whether all of them could be taken with real gates."""
    rng = Random(seed)
    steps: list[str] = []
    model = Model(config, server)
    begin(model)
    while len(steps) < most and (can := possible(model)):
        steps.append(rng.choice(can))
        take(model, steps[-1])
    try:
        replay_beside(config, server, tuple(steps))
    except CannotReplay:
        return False
    except (Drift, AssertionError) as error:
        raise Drift(f"{config.name}: {error}: {'; '.join(steps)}") from error
    return True
