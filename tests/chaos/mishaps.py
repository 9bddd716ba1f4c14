"""The mishaps: each one is a generator that yields the seconds until it goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from random import Random
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from celery_throttle.errors import ConfigurationError, StoreUnavailable
from tests.chaos.kinds import LEASE, REVOKED_TOO, STEERED
from tests.chaos.town import Place, Town
from tests.chaos.traffic import Traffic

Mishap = Callable[[Town, Traffic, Random], Iterator[float]]

__all__ = ["MISHAPS"]


def _somewhere(town: Town, chance: Random) -> Place | None:
    places = [place for place in town.all_places if place.up and not place.busy and not place.expected_end]
    return chance.choice(places) if places else None


def _at_a_place(mishap: Callable[[Town, Place, Random], Iterator[float]]) -> Mishap:
    """Let it happen to a place that is up, and is busy with it until it is over."""

    @wraps(mishap)
    def happen(town: Town, _: Traffic, chance: Random) -> Iterator[float]:
        if place := _somewhere(town, chance):
            place.busy = True
            try:
                yield from mishap(town, place, chance)
            finally:
                place.busy = False

    return happen


def _how_long(chance: Random) -> float:
    """Mostly shorter than a lease, sometimes longer."""
    return chance.uniform(0.05, 1.2) if chance.random() < 0.7 else chance.uniform(2.0, 6.0)


def _child(town: Town, chance: Random) -> tuple[Place | None, int]:
    place = _somewhere(town, chance)
    children = place.worker.children() if place and place.worker else []
    return (place, chance.choice(children)) if children else (None, 0)


def kill_child(town: Town, _: Traffic, chance: Random) -> Iterator[float]:
    place, child = _child(town, chance)
    if place and place.worker:
        town.note("child killed", place)
        with suppress(ProcessLookupError):
            place.worker.kill_child(child)
    yield 0


def freeze_child(town: Town, _: Traffic, chance: Random) -> Iterator[float]:
    place, child = _child(town, chance)
    if place:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGSTOP)
        trouble = town.note("child frozen", place)
        yield _how_long(chance)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGCONT)
        town.over(trouble)


@_at_a_place
def kill_worker(town: Town, place: Place, chance: Random) -> Iterator[float]:
    town.kill(place)
    yield chance.uniform(0.0, 4.0)
    town.start_again(place)


@_at_a_place
def freeze_worker(town: Town, place: Place, chance: Random) -> Iterator[float]:
    assert place.worker
    place.worker.freeze()
    trouble = town.note("frozen", place)
    yield _how_long(chance)
    if chance.random() < 0.2:
        town.over(trouble)
        town.kill(place)
        yield 1.0
        town.start_again(place)
    else:
        place.worker.thaw()
        town.over(trouble)


@_at_a_place
def warm(town: Town, place: Place, chance: Random) -> Iterator[float]:
    town.tell(place, "term")
    if chance.random() < 0.2:
        yield chance.uniform(0.0, 0.5)
        if town.runs_at(place):
            town.tell(place, "quit")
    yield from town.ended(place)
    town.start_again(place)


@_at_a_place
def cold(town: Town, place: Place, _: Random) -> Iterator[float]:
    town.tell(place, "quit")
    yield from town.ended(place)
    town.start_again(place)


def second_release(town: Town, _: Traffic, chance: Random) -> Iterator[float]:
    """A worker of another release comes, and goes after a while."""
    guest = town.guest
    if any((guest.busy, town.runs_at(guest))):
        return
    town.start(guest)
    yield chance.uniform(10.0, 25.0)
    while guest.busy:
        yield 0.2
    if guest.up and not guest.expected_end:
        guest.busy = True
        town.tell(guest, "term")
        yield from town.ended(guest)
        guest.busy = False


def server_mishap(town: Town, _: Traffic, chance: Random) -> Iterator[float]:
    """One of the servers is killed, stopped or frozen for a while."""
    name = chance.choice(("store", "store", "broker"))
    if name in town.busy:
        return
    server, how = town.server(name), chance.choice(("kill", "restart", "freeze", "freeze"))
    town.busy.add(name)
    trouble = town.note(name)
    if how == "freeze":
        server.freeze()
        yield _how_long(chance)
        server.thaw()
    else:
        if how == "kill":
            server.kill()
            yield _how_long(chance)
        server.restart()
    town.over(trouble)
    town.busy.discard(name)


@_at_a_place
def relay_mishap(town: Town, place: Place, chance: Random) -> Iterator[float]:
    """One worker is cut off from one of the servers, or gets its replies late or not at all."""
    name = chance.choice(("store", "store", "broker"))
    relay = place.store if name == "store" else place.broker
    how = chance.choice(("cut", "lose", "slow", "hold", "blip"))
    trouble = town.note(name, place)
    if how == "cut":
        relay.refuse()
        yield _how_long(chance)
        relay.accept()
    elif how == "lose":
        relay.hold_replies()
        yield chance.uniform(0.05, 1.0)
        relay.hang_up()
        relay.pass_replies()
    elif how == "hold":
        relay.hold_replies()
        yield _how_long(chance)
        relay.pass_replies()
    elif how == "slow":
        relay.delay = chance.uniform(0.05, 0.4)
        yield chance.uniform(1.0, 4.0)
        relay.delay = 0.0
    else:
        relay.hang_up()
    town.over(trouble)


def broker_gone(town: Town, _: Traffic, chance: Random) -> Iterator[float]:
    """For longer than a lease: the store is there, and no permit of a body that has ended is kept from others."""
    if town.busy or chance.random() < 0.5:
        return
    town.busy |= {"broker", "store"}
    trouble = town.note("broker")
    town.broker.kill()
    yield LEASE * 4
    kept = town.holders_without_a_body()
    for _again in range(6):  # a worker that is frozen, or cut off from the store, takes a lease longer
        if kept:
            yield 2.0
            kept &= town.holders_without_a_body()
    if kept:
        town.wrong.append(f"{time.monotonic():.3f} the broker is away, and permits of ended bodies are held: {kept}")
    town.broker.restart()
    town.over(trouble)
    town.busy.clear()


@_at_a_place
def no_descriptors(town: Town, place: Place, chance: Random) -> Iterator[float]:
    """A worker has (almost) no file descriptor left, just as its connections to the store break."""
    if place.pool != "prefork" or not place.worker:
        return  # its bodies have no other process
    most, trouble = place.worker.most_files(), town.note("store", place)
    place.worker.allow_files(place.worker.next_file() + chance.randint(0, 3))
    place.store.hang_up()
    yield chance.uniform(0.2, 4.0)
    place.worker.allow_files(most, children=True)
    town.over(trouble)


def lose_scripts(town: Town, _: Traffic, chance: Random) -> Iterator[float]:
    with suppress(RedisError), Redis.from_url(town.store.url, socket_timeout=1) as client:
        client.script_flush()
    if chance.random() < 0.5:
        with suppress(RedisError), Redis.from_url(town.store.url, socket_timeout=1) as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal")
    yield 0


def steer(town: Town, _: Traffic, chance: Random) -> Iterator[float]:
    name, what = chance.choice(STEERED), chance.choice(("override", "pause", "timed pause"))
    with suppress(StoreUnavailable, ConfigurationError):
        limit: Any = town.state.throttle.limit(name)
        if what == "timed pause":
            limit.pause(until=chance.uniform(0.3, 3.0), why="chaos")
            return
        if what == "pause":
            limit.pause(why="chaos")
        elif name == "shared":
            limit.override(chance.choice((1, 2, 5)), why="chaos")
        yield chance.uniform(0.5, 4.0)
    while not _undone(town, name):
        yield 0.5


def _undone(town: Town, name: str) -> bool:
    """Take back the changes of a limit; return whether the store was there for it, or nothing would start for ever."""
    with suppress(ConfigurationError):
        try:
            limit: Any = town.state.throttle.limit(name)
            limit.resume()
            limit.reset()
        except StoreUnavailable:
            return False
    return True


def revoke(_: Town, traffic: Traffic, chance: Random) -> Iterator[float]:
    """Revoke some tasks that were published a moment ago."""
    recent = [each for each in traffic.published[-30:] if each.task_id and each.call.kind.name in REVOKED_TOO]
    chosen = chance.sample(recent, min(len(recent), chance.randint(1, 6)))
    for each in chosen:
        each.revoked = True
    traffic.revoke([each.task_id for each in chosen] + ["bad\ud800id"])
    yield 0


#: Each with how often it comes.
MISHAPS: dict[Mishap, int] = {
    kill_child: 4, freeze_child: 3, kill_worker: 3, freeze_worker: 3, warm: 2, cold: 2, second_release: 1,
    server_mishap: 3, relay_mishap: 6, lose_scripts: 2, steer: 4, revoke: 3, broker_gone: 1, no_descriptors: 2,
}  # fmt: skip
