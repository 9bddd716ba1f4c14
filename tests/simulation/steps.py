"""The possible steps, their odds and their targets: all of it drawn from the seed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Any

from tests.simulation.broker import Channel
from tests.simulation.network import Pipe
from tests.simulation.pool import Job
from tests.simulation.workers import FRESH, Worker
from tests.simulation.world import OUTCOMES, World

__all__ = ["FAULTS", "MEDDLE", "Steps"]

_QUEUES = ("q1", "q2", "topic")
_TOPIC = {"topic": ("events", "events.new")}
#: Each happens at every step with this weight; those that go wrong only in some worlds.
_USUAL: dict[str, float] = {
    "publish": 12, "deliver": 16, "carry": 24, "hear": 14, "turn": 6, "timer": 8, "thread": 8, "begin": 14, "accept": 6,
    "end": 10, "hear_end": 8, "ask": 6, "time": 12, "go_on": 4,
}  # fmt: skip
FAULTS: dict[str, float] = {
    "kill": 1.5, "doom": 2, "warm": 1, "cold": 0.7, "lose_broker": 1.5, "cut": 2.5, "cut_off": 1, "lose_ask": 2,
    "flush_scripts": 1.5, "lose_data": 0.4, "flush_data": 0.4, "strike": 2, "queues": 1.5, "steer": 2, "revoke": 1.5,
    "long_time": 2, "stray": 3, "stop_hearing": 2, "full": 1.5, "results": 1, "kill_publisher": 1.5,
}  # fmt: skip
_ALWAYS: dict[str, float] = {"start": 6, "reconnect": 8, "heal": 3, "stray": 1}
#: The name of the operator below among the faults.
MEDDLE = "meddle"
#: How many worlds have an operator that drops and drains tasks, and how often it does that, ends it, dies during it.
_MEDDLES, _DROPS, _DRAINS, _DRAINED, _DIES = 0.3, 0.05, 0.04, 0.15, 0.3
_PASSES = (100, 1_000, 10_000, 60_000, 300_000)


@dataclass
class _Place:
    """Where a worker is wanted."""

    slots: int
    queues: list[str]
    has_event_loop: bool
    worker: Worker | None = None


class Steps:
    """Chooses and carries out."""

    def __init__(self, world: World, faults: Sequence[str] | None = None) -> None:
        self.world, self.rng = world, world.rng
        #: Whether no worker is wanted any more.
        self.closing = False
        share = self.rng.choice([0.0, 0.15, 0.3, 0.5, 1.0])
        #: Whether nothing goes wrong in this world; and whether all calls get through at once, too.
        self.calm = not share and not faults
        self.prompt = world.prompt = self.calm and self.rng.random() < 0.5
        self._left = 40 if self.prompt else self.rng.randint(10, 40)
        self._set_up()
        weights = dict(_USUAL) | _ALWAYS
        drawn = {name: weight for name, weight in FAULTS.items() if self.rng.random() < share}
        weights |= drawn if faults is None else {name: FAULTS[name] for name in faults if name != MEDDLE}
        self._odds = list(accumulate(weights.values()))
        self._do: list[Callable[[], bool]] = [getattr(self, f"_{name}") for name in weights]
        #: The operator's changes to single tasks draw from a generator of their own, so that all else stays the same.
        self._operator = Random(f"operator {world.seed}")
        self._meddles = not self.calm and self._operator.random() < _MEDDLES if faults is None else MEDDLE in faults
        self._patience = self.rng.choice([0.2, 0.5, 0.8])  # how often a process that can go on at once does

    def _set_up(self) -> None:
        world, rng = self.world, self.rng
        queues = _QUEUES[: rng.randint(1, 3)]
        world.routes = dict(_TOPIC)
        world.broker.queues = {queue: deque() for queue in queues}
        kinds = list(world.scene.kinds)
        self._kinds = rng.sample(kinds, rng.randint(1, 2) if self.prompt else rng.randint(2, 6))
        world.queue_of = {kind: rng.choice(queues) for kind in kinds}
        self.places = [
            _Place(rng.randint(1, 3), rng.sample(queues, min(len(queues), rng.randint(1, 2))), rng.random() < 0.7)
            for _ in range(rng.randint(2, 3))
        ]
        for queue in queues:
            if not any(queue in place.queues for place in self.places):
                rng.choice(self.places).queues.append(queue)
        for place in self.places:
            self.fill(place)

    def fill(self, place: _Place) -> None:
        """Start a worker where one is wanted."""
        place.worker = self.world.start_worker(place.slots, place.queues, has_event_loop=place.has_event_loop)

    def step(self) -> None:
        """Let one thing happen."""
        self.world.step += 1
        if self._meddles:
            self._meddle()
        for _ in range(30):
            (do,) = self.rng.choices(self._do, cum_weights=self._odds)
            if do():
                break
        else:
            self._time()
        while self.prompt and self.get_through():
            pass

    def get_through(self) -> bool:
        """Let all pending messages arrive, and loops turn; return whether there was anything to do."""
        world, busy = self.world, False
        for worker in list(world.workers):
            while worker.threads and not worker.dead:
                world.act(worker, worker.threads.pop(0))
                busy = True
            if worker.loop.wanted and not worker.dead:
                world.act(worker, worker.loop.turn)
                busy = True
        for pipe in list(world.network.pipes):
            while pipe.sent:
                world.carry(pipe)
                busy = True
            if pipe.replies or pipe.state == "cut":
                world.hear(pipe, len(pipe.replies))
                if not pipe.worker.dead:
                    world.act(pipe.worker, pipe.worker.loop.turn)
                busy = True
        return busy

    # -- choosing ----------------------------------------------------------------------------------------------------

    def _one(self, those: Sequence[Any]) -> Any:
        return those[int(self.rng.random() * len(those))] if those else None

    def _with(self, those: Sequence[Any], *acts: Callable[[Any], object]) -> bool:
        """Let all this happen to one of these; return whether there is one."""
        one = self._one(those)
        for act in acts if one is not None else ():
            act(one)
        return one is not None

    def _soon(self) -> bool:
        return self.rng.random() < self._patience

    def _turn_maybe(self, worker: Worker) -> None:
        if not worker.dead and (self.rng.random() < 0.8 or self.prompt):
            self.world.act(worker, worker.loop.turn)

    def _jobs(self, state: str) -> list[Job]:
        free = [worker for worker in self.world.workers if not worker.blocked]
        return [job for worker in free for job in worker.pool.jobs if job.state == state]

    @property
    def _working(self) -> list[Worker]:
        return [worker for worker in self.world.workers if not worker.stopping and not worker.blocked]

    @property
    def _consuming(self) -> list[Worker]:
        return [worker for worker in self._working if worker.channel]

    # -- the usual ---------------------------------------------------------------------------------------------------

    def _kill_publisher(self) -> bool:
        return self._publish(self.rng.randint(1, 2))

    def _publish(self, doom: int | None = None) -> bool:
        if not self._left:
            return False
        self._left -= 1
        name = self._one(self._kinds)
        arguments = {"key": self.rng.randint(1, 2), "n": self.rng.randint(1, 2)}
        task_id = f"t{self._left}" if self._one((True, False)) else None
        self.world.publish(name, arguments, self.world.queue_of[name], task_id, doom)
        return True

    def _deliver(self) -> bool:
        broker = self.world.broker
        channels = [
            each for each in broker.channels if each.has_room and not each.worker.stopping and not each.worker.blocked
        ]
        return self._with(
            [(channel, queue) for channel in channels for queue in channel.queues if broker.queues[queue]],
            self._deliver_from,
        )

    def _deliver_from(self, found: tuple[Channel, str]) -> None:
        channel, queue = found
        self.world.deliver(channel, queue)
        self._turn_maybe(channel.worker)

    def _carry(self) -> bool:
        network = self.world.network
        pipe = self._one([pipe for pipe in network.pipes if pipe.sent and pipe.worker not in network.cut_off])
        if pipe is not None:
            self.world.carry(pipe)
            if pipe.replies and self._soon():
                self._hear_on(pipe, len(pipe.replies))
        return pipe is not None

    def _hear(self) -> bool:
        away = self.world.network.cut_off
        pipes = [
            pipe
            for pipe in self.world.network.pipes
            if pipe.state == "cut" or (pipe.replies and pipe.worker not in away)
        ]
        return self._with(pipes, lambda pipe: self._hear_on(pipe, self.rng.randint(1, max(len(pipe.replies), 1))))

    def _hear_on(self, pipe: Pipe, count: int) -> None:
        """Let a worker read so many replies."""
        self.world.hear(pipe, count)
        self._turn_maybe(pipe.worker)

    def _turn(self) -> bool:
        wanted = [worker for worker in self.world.workers if worker.loop.wanted]
        return self._with(wanted, lambda worker: self.world.act(worker, worker.loop.turn))

    def _timer(self) -> bool:
        worker = self._one([worker for worker in self.world.workers if worker.timekeeper.is_due])
        for _ in range(8):
            if worker is not None and not worker.dead and worker.timekeeper.is_due:
                self.world.act(worker, worker.timekeeper.run)
        return worker is not None

    def _thread(self) -> bool:
        worker = self._one([worker for worker in self.world.workers if worker.threads])
        if worker is not None:
            self.world.say("connect", worker)
            self.world.act(worker, worker.threads.pop(0))
        return worker is not None

    def _go_on(self) -> bool:
        """Let a worker whose main thread waited go on, or one that stops leave."""
        now = self.world.clock.now_us
        waited = [worker for worker in self.world.workers if worker.fiber.can_go_on(now)]
        return self._with(waited, lambda worker: self.world.act(worker, worker.fiber.go_on)) or self._leave()

    def _leave(self) -> bool:
        """A worker that stops has nothing more to do."""
        world = self.world
        idle = [each for each in world.workers if each.stopping and not each.blocked and not each.pool.jobs]
        return self._with(idle, lambda worker: (world.leave if worker.finished else world.finish)(worker))

    def _begin(self) -> bool:
        job = self._one(self._jobs("sent"))
        if job is not None:
            self.world.begin(job)
            if self._soon():
                self._accepted(job)
        return job is not None

    def _accept(self) -> bool:
        jobs = [job for job in self._jobs("begun") if not job.accepted]
        return self._with(jobs, self._accepted)

    def _accepted(self, job: Job) -> None:
        self.world.accept(job)
        self._turn_maybe(job.worker)

    def _end(self) -> bool:
        job = self._one(self._jobs("begun"))
        if job is not None:
            self.world.end(job, "success" if self.calm or self.rng.random() < 0.6 else self._one(OUTCOMES))
            if self._soon():
                self._heard(job)
        return job is not None

    def _hear_end(self) -> bool:
        return self._with(self._jobs("ended"), self._heard)

    def _heard(self, job: Job) -> None:
        """Let a worker see the end of a job."""
        if not job.accepted:
            self.world.accept(job)
            if job.worker.dead or job.worker.blocked:  # it sees the end after that, in any thread
                return
        self.world.hear_end(job)
        self._turn_maybe(job.worker)

    def _ask(self) -> bool:
        """Let a renewal, or its answer, arrive."""
        network = self.world.network
        asks = [ask for ask in network.asks if ask.carried_us or ask.worker not in network.cut_off]
        return self._with(asks, lambda ask: ask.hear() if ask.carried_us else self.world.carry_ask(ask))

    def _time(self, *passes: int) -> bool:
        self.world.pass_time(self._one(passes or _PASSES))
        return True

    # -- faults --------------------------------------------------------------------------------------------------------

    @property
    def _lives(self) -> list[Worker]:
        return [worker for worker in self.world.workers if worker.doom is None]

    def _kill(self) -> bool:
        return self._with(self._lives, self.world.kill)

    def _doom(self) -> bool:
        return self._with(self._lives, lambda worker: self.world.kill(worker, self.rng.randint(1, 6)))

    def _warm(self) -> bool:
        worker = self._one(self._working)
        if worker is not None:
            self.world.say("warm shutdown", worker)
            self.world.act(worker, worker.close)
        return worker is not None

    def _cold(self) -> bool:
        return self._with(self._working, self.world.cold)

    def _lose_broker(self) -> bool:
        return self._with(self._consuming, self.world.lose_broker, self._turn_maybe)

    def _cut(self) -> bool:
        pipe = self._one([pipe for pipe in self.world.network.pipes if pipe.state == "open"])
        if pipe is not None:
            self.world.say("cut", pipe.worker, "hints" if pipe.listens else "calls")
            pipe.cut(self.rng.randint(0, len(pipe.sent)))
        return pipe is not None

    def _cut_off(self) -> bool:
        worker = self._one(self.world.workers)
        if worker is not None:
            self.world.say("cut off", worker)
            self.world.network.cut_off.add(worker)
        return worker is not None

    def _stop_hearing(self) -> bool:
        """A moment in which nothing gets through: long enough for calls to be given up, or for a lease."""
        return self._time(500_000, 1_100_000, 2_000_000)

    def _long_time(self) -> bool:
        return self._time(3_100_000, 4_500_000, 21_000_000)

    def _lose_ask(self) -> bool:
        ask = self._one(self.world.network.asks)
        if ask is not None:
            self.world.say("lose renewal", ask.worker)
            ask.lose(carried=self.rng.random() < 0.5)
        return ask is not None

    def _stray(self) -> bool:
        """Let a call arrive that was sent before its connection ended."""
        strays = self.world.network.strays
        found = self._one(strays)
        if found is not None:
            self.world.say("stray")
            self.world.carry_stray(*found.popleft())
            self.world.network.strays = [each for each in strays if each]
        return found is not None

    def _flush_scripts(self) -> bool:
        self.world.say("script flush")
        self.world.network.scripts = set()
        return True

    def _lose_data(self) -> bool:
        self.world.lose_data()
        return True

    def _flush_data(self) -> bool:
        self.world.flush_data()
        return True

    def _full(self) -> bool:
        if self.world.network.full:
            return False
        self.world.network.fill(full=True)
        self.world.say("store full")
        return True

    def _results(self) -> bool:
        if self.world.results_away:
            return False
        self.world.results_away = True
        self.world.say("results away")
        return True

    def _strike(self) -> bool:
        early_us = self.world.clock.after(-FRESH)
        held = [each for channel in self.world.broker.channels for each in channel.unacked.values()]
        old = [each for each in held if each.at_us <= early_us and not each.channel.worker.knows_alone(each.tag)]
        return self._with(old, self.world.strike)

    def _queues(self) -> bool:
        worker = self._one(self._consuming)
        if worker is not None:
            self.world.change_queues(worker, self._one(list(self.world.broker.queues)))
            self._turn_maybe(worker)
        return worker is not None

    def _steer(self) -> bool:
        limits = self.world.scene.kinds[self._one(self._kinds)].limits
        if not limits:
            return False
        self.world.steer(
            self._one(limits).name, self._one(("override", "override", "rate", "reset", "pause", "resume", "resume"))
        )
        return True

    def _revoke(self) -> bool:
        return self._with(list(self.world.book.entries), self.world.revoke)

    def _meddle(self) -> None:
        """Drop a task as an operator, or drain some; the operator may die before the report."""
        world, chance = self.world, self._operator
        if chance.random() < _DROPS and world.book.entries:
            world.drop(chance.choice(list(world.book.entries)))
        if chance.random() < _DRAINS:
            world.drain(chance.randint(1, 3))
        if world.drains and chance.random() < _DRAINED:
            world.drained(dies=chance.random() < _DIES)

    # -- repairs -------------------------------------------------------------------------------------------------------

    def _start(self) -> bool:
        return self._with([place for place in self.places if place.worker not in self.world.workers], self.fill)

    def _reconnect(self) -> bool:
        lost = [worker for worker in self._working if worker.channel is None]
        return self._with(lost, lambda worker: self.world.connect_broker(worker, worker.queues), self._turn_maybe)

    def _heal(self) -> bool:
        wrong = bool(self.world.network.cut_off or self.world.network.full or self.world.results_away)
        if wrong:
            self.world.heal()
            self.world.say("heal")
        return wrong
