"""Work that becomes due in a script that answers no worker: the workers get its time by a hint."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis import Redis

from celery_throttle.core.limits import Limit
from tests.primitives.faults import StoreClock
from tests.store.caller import started
from tests.store.hints import Hints
from tests.store.lock_caller import LockCaller
from tests.store.peek import expire
from tests.store.steering import Steering

GPU = Limit("gpu", 1)


class World:
    """A limit at which a lane without workers stands before a lane with an idle worker."""

    def __init__(self, redis: Redis) -> None:
        self.redis, self.steering = redis, Steering(redis)
        self.idle = LockCaller(redis, "iiiiiiii", "idle")
        self.ours = LockCaller(redis, "oooooooo", "ours")

    def fill(self) -> None:
        """Take the permit, for tasks that wait behind it."""
        self.held = self.ours.take("held", GPU)
        self.park()

    def park(self) -> None:
        self.idle.put("first", GPU)
        self.ours.put("second", GPU)


def closed_by(what: str, value: object = 1) -> Callable[[World], Callable[[], object]]:
    """Return a case: an operator ends what keeps the tasks from starting."""

    def begin(world: World) -> Callable[[], object]:
        world.ours.know(GPU)
        world.steering.say(GPU, what, value)
        world.park()
        return lambda: world.steering.unsay(GPU, what)

    return begin


def opened_by(what: str, value: object = 1) -> Callable[[World], Callable[[], object]]:
    """Return a case: an operator lets more tasks start."""

    def begin(world: World) -> Callable[[], object]:
        world.fill()
        return lambda: world.steering.say(GPU, what, value)

    return begin


def a_limit_is_declared(world: World) -> Callable[[], object]:
    world.fill()
    return lambda: world.ours.declare(Limit("gpu", 2))


def a_lease_ends(world: World) -> Callable[[], object]:
    world.fill()
    expire(world.redis, "held")
    return world.ours.reap


CASES = {
    "resume": closed_by("pause"),
    "release-hold": closed_by("hold"),
    "reset": closed_by("override", 0),
    "override": opened_by("override", 2),
    "disable": opened_by("disable"),
    "declare": a_limit_is_declared,
    "reap": a_lease_ends,
}


@pytest.mark.parametrize("case", CASES)
def test_workers_learn_when_the_turn_of_an_idle_queue_ends(
    case: str, redis: Redis, hints: Hints, clock: StoreClock
) -> None:
    world = World(redis)
    happens = CASES[case](world)
    hints.take()
    happens()
    found = hints.take()
    assert [text for text in found if text.startswith("due ")] == ["due 100"], found
    clock.move(100_000)
    assert started(world.ours.look(1)) == ("second",)


def test_the_end_of_a_pause_is_told_at_its_beginning(redis: Redis, hints: Hints, clock: StoreClock) -> None:
    world = World(redis)
    world.ours.know(GPU)
    world.steering.say(GPU, "pause")
    world.park()
    hints.take()
    world.steering.say(GPU, "pause", until="+5000")
    assert "due 5000" in hints.take()
    clock.move(5_000_000)
    assert started(world.ours.look(1)) == ()  # the idle queue has its turn
    clock.move(100_000)
    assert started(world.ours.look(1)) == ("second",)


def test_a_call_of_a_worker_sends_none(redis: Redis, hints: Hints) -> None:
    """The answer has the time."""
    world = World(redis)
    world.fill()
    hints.take()
    reply = world.ours.release(world.held, slots=1)
    assert 0 < reply.wait <= 0.102
    assert not any(text.startswith("due ") for text in hints.take())
