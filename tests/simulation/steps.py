"""The possible steps, their odds and their targets: all of it drawn from the seed."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.simulation.scene import KINDS
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
    "long_time": 2, "stray": 3, "stop_hearing": 2, "full": 1.5, "results": 1,
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
    """Chooses and carries out.

    Args:
        world: where.
        faults: the possible faults, instead of those of the seed.
    """

    def __init__(self, world: World, faults: Sequence[str] | None = None) -> None:
        self.world, self.rng = world, world.rng
        #: Whether no worker is wanted any more.
        self.closing = False
        share = self.rng.choice([0.0, 0.15, 0.3, 0.5, 1.0])
        #: Whether nothing goes wrong in this world; and whether all calls get through at once, too.
        self.calm = not share and not faults
        self.prompt = self.calm and self.rng.random() < 0.5
        world.prompt = self.prompt
        self._left = 40 if self.prompt else self.rng.randint(10, 40)
        self._set_up()
        weights = dict(_USUAL) | _ALWAYS
        drawn = {name: weight for name, weight in FAULTS.items() if self.rng.random() < share}
        weights |= drawn if faults is None else {name: FAULTS[name] for name in faults if name != MEDDLE}
        self._names = list(weights)
        self._weights = []
        total = 0.0
        for weight in weights.values():
            total += weight
            self._weights.append(total)
        self._do: list[Callable[[], bool]] = [getattr(self, f"_{name}") for name in self._names]
        #: The operator's changes to single tasks draw from a generator of their own, so that all else stays the same.
        self._operator = Random(f"operator {world.seed}")
        self._meddles = not self.calm and self._operator.random() < _MEDDLES if faults is None else MEDDLE in faults
        self._patience = self.rng.choice([0.2, 0.5, 0.8])  # how often a process that can go on at once does

    def _set_up(self) -> None:
        world, rng = self.world, self.rng
        queues = list(_QUEUES[: rng.randint(1, 3)])
        world.routes = dict(_TOPIC)
        world.broker.queues = {queue: deque() for queue in queues}
        kinds = list(world.scene.kinds)
        chosen = list(filter(None, os.environ.get(KINDS, "").split(",")))
        self._kinds = chosen or rng.sample(kinds, rng.randint(1, 2) if self.prompt else rng.randint(2, 6))
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
            (do,) = self.rng.choices(self._do, cum_weights=self._weights)
            if do():
                break
        else:
            self._time()
        while self.prompt and self._get_through():
            pass

    def _get_through(self) -> bool:
        """Let all pending messages arrive."""
        world, busy = self.world, False
        for worker in world.workers:
            while worker.threads:
                world.act(worker, worker.run_thread)
            if worker.loop.posted or worker.loop.woken:
                world.act(worker, worker.turn)
                busy = True
        for pipe in list(world.network.pipes):
            while pipe.sent:
                world.carry(pipe)
            if pipe.replies:
                busy = self.world.hear(pipe, len(pipe.replies)) or busy
                world.act(pipe.worker, pipe.worker.turn)
        return busy

    # -- choosing ----------------------------------------------------------------------------------------------------

    def _one(self, those: Sequence[Any]) -> Any:
        return those[int(self.rng.random() * len(those))] if those else None

    def _soon(self) -> bool:
        return self.rng.random() < self._patience

    def _turn_maybe(self, worker: Worker) -> None:
        if not worker.dead and (self.rng.random() < 0.8 or self.prompt):
            self.world.act(worker, worker.turn)

    def _job(self, state: str, accepted: bool | None = None) -> Any:
        return self._one(
            [
                (worker, job)
                for worker in self.world.workers
                for job in worker.pool.jobs
                if job.state == state and not worker.blocked and (accepted is None or job.accepted == accepted)
            ]
        )

    # -- the usual ---------------------------------------------------------------------------------------------------

    def _publish(self) -> bool:
        if not self._left:
            return False
        self._left -= 1
        name = self._one(self._kinds)
        arguments = {"key": self.rng.randint(1, 2), "n": self.rng.randint(1, 2)}
        named = self._one((True, False))
        task_id = f"t{self._left}" if named else None
        self.world.publish(name, arguments, self.world.queue_of[name], task_id)
        return True

    def _deliver(self) -> bool:
        broker = self.world.broker
        found = self._one(
            [
                (channel, queue)
                for channel in broker.channels
                if channel.has_room and not channel.worker.stopping and not channel.worker.blocked
                for queue in channel.queues
                if broker.queues[queue]
            ]
        )
        if found is None:
            return False
        channel, queue = found
        worker = channel.worker
        message = broker.deliver(channel, queue, self.world.clock.now_us)
        self.world.receive(worker, message)
        self._turn_maybe(worker)
        return True

    def _carry(self) -> bool:
        network = self.world.network
        pipe = self._one([pipe for pipe in network.pipes if pipe.sent and pipe.worker not in network.cut_off])
        if pipe is None:
            return False
        self.world.carry(pipe)
        if pipe.replies and self._soon():
            self._hear_on(pipe, len(pipe.replies))
        return True

    def _hear(self) -> bool:
        pipe = self._one(
            [
                pipe
                for pipe in self.world.network.pipes
                if pipe.state == "cut" or (pipe.replies and pipe.worker not in self.world.network.cut_off)
            ]
        )
        if pipe is None:
            return False
        return self._hear_on(pipe, self.rng.randint(1, max(len(pipe.replies), 1)))

    def _hear_on(self, pipe: Any, count: int) -> bool:
        heard = self.world.hear(pipe, count)
        self._turn_maybe(pipe.worker)
        return heard

    def _turn(self) -> bool:
        worker = self._one([worker for worker in self.world.workers if worker.loop.posted or worker.loop.woken])
        if worker is None:
            return False
        self.world.act(worker, worker.turn)
        return True

    def _timer(self) -> bool:
        worker = self._one([worker for worker in self.world.workers if worker.timekeeper.is_due])
        if worker is None:
            return False
        for _ in range(8):
            if not worker.dead and worker.timekeeper.is_due:
                self.world.act(worker, worker.run_timer)
        return True

    def _thread(self) -> bool:
        worker = self._one([worker for worker in self.world.workers if worker.threads])
        if worker is None:
            return False
        self.world.say("connect", worker)
        self.world.act(worker, worker.run_thread)
        return True

    def _go_on(self) -> bool:
        now = self.world.clock.now_us
        worker = self._one([each for each in self.world.workers if each.can_go_on(now)])
        if worker is None:
            return self._leave()
        self.world.act(worker, worker.go_on)
        return True

    def _leave(self) -> bool:
        """A worker that stops has nothing more to do."""
        world = self.world
        worker = self._one(
            [each for each in world.workers if each.stopping and not each.blocked and not each.pool.jobs]
        )
        if worker is None:
            return False
        if not worker.finished:
            world.finish(worker)
        else:
            world.leave(worker)
        return True

    def _begin(self) -> bool:
        found = self._job("sent")
        if found is None:
            return False
        worker, job = found
        self.world.begin(worker, job)
        if self._soon():
            self._accepted(worker, job)
        return True

    def _accept(self) -> bool:
        found = self._job("begun", accepted=False)
        if found is None or found[1].discarded:
            return False
        self._accepted(*found)
        return True

    def _accepted(self, worker: Worker, job: Any) -> None:
        self.world.accept(worker, job)
        self._turn_maybe(worker)

    def _end(self) -> bool:
        found = self._job("begun")
        if found is None:
            return False
        worker, job = found
        outcome = "success" if self.calm or self.rng.random() < 0.6 else self._one(OUTCOMES)
        self.world.end(worker, job, outcome)
        if self._soon():
            self._heard(worker, job)
        return True

    def _hear_end(self) -> bool:
        found = self._job("ended")
        if found is None:
            return False
        self._heard(*found)
        return True

    def _heard(self, worker: Worker, job: Any) -> None:
        if not job.accepted and not job.discarded:
            self.world.accept(worker, job)
            if worker.dead or worker.blocked:  # it sees the end after that, in any thread
                return
        self.world.hear_end(worker, job)
        self._turn_maybe(worker)

    def _ask(self) -> bool:
        network = self.world.network
        ask = self._one([ask for ask in network.asks if ask.carried_us or ask.worker not in network.cut_off])
        if ask is None:
            return False
        if not ask.carried_us:
            self.world.carry_ask(ask)
        else:
            ask.hear()
        return True

    def _time(self) -> bool:
        self.world.pass_time(self._one(_PASSES))
        return True

    # -- faults --------------------------------------------------------------------------------------------------------

    def _lives(self) -> Any:
        return self._one([worker for worker in self.world.workers if worker.doom is None])

    def _kill(self) -> bool:
        worker = self._lives()
        if worker is not None:
            self.world.kill(worker)
        return worker is not None

    def _doom(self) -> bool:
        worker = self._lives()
        if worker is not None:
            self.world.kill(worker, self.rng.randint(1, 6))
        return worker is not None

    def _warm(self) -> bool:
        worker = self._one([each for each in self.world.workers if not each.stopping and not each.blocked])
        if worker is None:
            return False
        self.world.say("warm shutdown", worker)
        self.world.act(worker, worker.close)
        return True

    def _cold(self) -> bool:
        worker = self._one([each for each in self.world.workers if not each.stopping and not each.blocked])
        if worker is None:
            return False
        self.world.cold(worker)
        return True

    def _lose_broker(self) -> bool:
        worker = self._one(
            [each for each in self.world.workers if each.channel and not each.stopping and not each.blocked]
        )
        if worker is None:
            return False
        self.world.lose_broker(worker)
        self._turn_maybe(worker)
        return True

    def _cut(self) -> bool:
        pipe = self._one([pipe for pipe in self.world.network.pipes if pipe.state == "open"])
        if pipe is None:
            return False
        self.world.say("cut", pipe.worker, "hints" if pipe.listens else "calls")
        pipe.cut(self.rng.randint(0, len(pipe.sent)))
        return True

    def _cut_off(self) -> bool:
        worker = self._one(self.world.workers)
        if worker is None:
            return False
        self.world.say("cut off", worker)
        self.world.network.cut_off.add(worker)
        return True

    def _stop_hearing(self) -> bool:
        """A moment in which nothing gets through: long enough for calls to be given up, or for a lease."""
        self.world.pass_time(self._one((500_000, 1_100_000, 2_000_000)))
        return True

    def _heal(self) -> bool:
        network = self.world.network
        if not network.cut_off and not network.full and not self.world.results_away:
            return False
        network.cut_off.clear()
        network.fill(full=False)
        self.world.results_away = False
        self.world.say("heal")
        return True

    def _lose_ask(self) -> bool:
        ask = self._one(self.world.network.asks)
        if ask is None:
            return False
        self.world.say("lose renewal", ask.worker)
        ask.lose(carried=self.rng.random() < 0.5)
        return True

    def _stray(self) -> bool:
        strays = self.world.network.strays
        if not strays:
            return False
        which = int(self.rng.random() * len(strays))
        self.world.say("stray")
        worker, command = strays[which].popleft()
        self.world.carry_stray(worker, command)
        if not strays[which]:
            del strays[which]
        return True

    def _flush_scripts(self) -> bool:
        self.world.say("script flush")
        self.world.network.lose_scripts()
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
        held = [
            each
            for channel in self.world.broker.channels
            for each in channel.unacked.values()
            if each.at_us <= early_us and not channel.worker.knows_alone(each.tag)
        ]
        delivery = self._one(held)
        if delivery is None:
            return False
        self.world.strike(delivery)
        return True

    def _queues(self) -> bool:
        worker = self._one(
            [each for each in self.world.workers if each.channel and not each.stopping and not each.blocked]
        )
        if worker is None:
            return False
        queue = self._one(list(self.world.broker.queues))
        self.world.change_queues(worker, queue)
        self._turn_maybe(worker)
        return True

    def _steer(self) -> bool:
        kind = self.world.scene.kinds[self._one(self._kinds)]
        if not kind.buckets:
            return False
        limit = self._one(kind.buckets)[0]
        self.world.steer(limit, self._one(("override", "override", "rate", "reset", "pause", "resume", "resume")))
        return True

    def _revoke(self) -> bool:
        task_id = self._one([each.task_id for each in self.world.book.entries.values()])
        if task_id is None:
            return False
        self.world.revoke(task_id)
        return True

    def _meddle(self) -> None:
        """Drop a task as an operator, or drain some; the operator may die before the report."""
        world, chance = self.world, self._operator
        if chance.random() < _DROPS and world.book.entries:
            world.drop(chance.choice(list(world.book.entries)))
        if chance.random() < _DRAINS:
            world.drain(chance.randint(1, 3))
        if world.drains and chance.random() < _DRAINED:
            world.drained(dies=chance.random() < _DIES)

    def _long_time(self) -> bool:
        self.world.pass_time(self._one((3_100_000, 4_500_000, 21_000_000)))
        return True

    # -- repairs -------------------------------------------------------------------------------------------------------

    def _start(self) -> bool:
        place = self._one([place for place in self.places if place.worker not in self.world.workers])
        if place is None:
            return False
        self.fill(place)
        return True

    def _reconnect(self) -> bool:
        worker = self._one([each for each in self.world.workers if each.channel is None and not each.stopping])
        if worker is None or worker.blocked:
            return False
        self.world.connect_broker(worker, worker.queues)
        self._turn_maybe(worker)
        return True
