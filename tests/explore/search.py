"""Search all states of a world, breadth first: each is checked, and has to come to a fair end."""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass, field

from tests.explore.checks import check, check_at_rest, is_done
from tests.explore.steps import begin, possible, take
from tests.explore.store import Server
from tests.explore.world import World
from tests.explore.worlds import Config
from tests.simulation.invariants import Violation

__all__ = ["Found", "Searched", "replay", "search"]

#: The next steps if nothing goes wrong any more.
_FAIR = ("call", "hear", "stray-lost", "renewal", "start", "steer", "say", "end", "deliver", "publish", "leave")
_LOOKS, _MOST_AGES, _MOST_FAIR = 4, 14, 400


@dataclass(frozen=True)
class Found:
    """A violation, and the steps to it."""

    what: str
    trace: tuple[str, ...]

    def __str__(self) -> str:
        steps = "".join(f"\n    {step}" for step in self.trace)
        return f"{self.what}, after {len(self.trace)} steps:{steps}"


@dataclass
class Searched:
    """The result of a search.

    Attributes:
        found: the first violation of each kind.
        left: states that were not followed up, since there were too many, or no time.
    """

    config: Config
    states: int = 0
    transitions: int = 0
    depth: int = 0
    left: int = 0
    seconds: float = 0.0
    found: dict[str, Found] = field(default_factory=dict)

    def __str__(self) -> str:
        whole = f"cut, {self.left} not followed" if self.left else "whole"
        speed = self.states / max(self.seconds, 1e-3)
        return (
            f"{self.config.name}: {self.states} states, {self.transitions} transitions, depth {self.depth}, {whole}, "
            f"{self.seconds:.1f} s ({speed:.0f} states/s), {len(self.found)} found"
        )


class _Search:
    def __init__(self, config: Config, server: Server) -> None:
        self._config, self._server = config, server
        server.forget()
        self._seen: set[bytes] = set()
        self._good: set[bytes] = set()  # states that come to a fair end
        self._came: list[tuple[int, str]] = []  # from which state, by which step
        self.searched = Searched(config)

    def run(self, most: int, seconds: float, *, first: bool) -> Searched:
        began, searched = time.monotonic(), self.searched
        world = World(self._config, self._server)
        begin(world)
        self._note(world, 0, "")
        frontier = [(0, world.save())]
        while frontier and not searched.left:
            searched.depth += 1
            after: list[tuple[int, bytes]] = []
            for at, (number, saved) in enumerate(frontier):
                self._follow(number, saved, after)
                over = searched.states >= most or time.monotonic() - began > seconds
                if over or (first and searched.found):
                    searched.left = len(frontier) - at - 1 + len(after)
                    break
            frontier = after
        searched.seconds = time.monotonic() - began
        return searched

    def _follow(self, number: int, saved: bytes, after: list[tuple[int, bytes]]) -> None:
        world = World.load(self._config, self._server, saved)
        steps = possible(world)
        if _fair_step(steps) is None:
            self._end(number, saved)
        for step in steps:
            world = World.load(self._config, self._server, saved)
            self.searched.transitions += 1
            try:
                take(world, step)
                if self._note(world, number, step):
                    check(world)
                    after.append((len(self._came) - 1, world.save()))
            except Violation as error:
                self._wrong(error, number, (step,))

    def _note(self, world: World, number: int, step: str) -> bool:
        key = _digest(world)
        if key in self._seen:
            return False
        self._seen.add(key)
        self._came.append((number, step))
        self.searched.states += 1
        return True

    def _end(self, number: int, saved: bytes) -> None:
        """Let nothing go wrong any more: all comes to its end."""
        world = World.load(self._config, self._server, saved)
        taken: list[str] = []
        passed: list[bytes] = []
        try:
            while True:
                key = _digest(world)
                if key in self._good:
                    break
                passed.append(key)
                taken.append(_next_fair(world, taken))
                if taken[-1] == "rest":
                    check_at_rest(world)
                    break
                take(world, taken[-1])
                check(world)
        except Violation as error:
            self._wrong(error, number, tuple(taken))
        else:
            self._good.update(passed)

    def _wrong(self, error: Violation, number: int, more: tuple[str, ...]) -> None:
        what = str(error)
        kind = re.sub(r"w\d+:[\w.]+|\d+", "#", what)[:60]
        self.searched.found.setdefault(kind, Found(what, self._trace(number) + more))

    def _trace(self, number: int) -> tuple[str, ...]:
        steps = []
        while number:
            number, step = self._came[number]
            steps.append(step)
        return tuple(reversed(steps))


def _digest(world: World) -> bytes:
    return hashlib.blake2b(world.key().encode(), digest_size=10).digest()


def _fair_step(steps: list[str]) -> str | None:
    for what in _FAIR:
        for step in steps:
            kind, *rest = step.split()
            if kind == what and (kind != "call" or len(rest) == 1) and (kind != "end" or rest[-1] == "success"):
                return step
    return None


def _next_fair(world: World, taken: list[str]) -> str:
    """Return the next step if nothing goes wrong: workers look, and then time goes on."""
    if is_done(world) or len(taken) == _MOST_FAIR:
        return "rest"
    steps = possible(world)
    if (fair := _fair_step(steps)) is not None:
        return fair
    ages = taken.count("age")
    since = taken[len(taken) - taken[::-1].index("age") :] if ages else taken
    looked = sum(step.startswith("look") for step in since)
    looks = [step for step in steps if step.startswith("look")]
    if looks and looked < _LOOKS:
        return looks[looked % len(looks)]
    return "age" if ages < _MOST_AGES else "rest"


def search(config: Config, server: Server, *, most: int = 10**9, seconds: float = 1e9, first: bool = False) -> Searched:
    """Search a world.

    Args:
        config: of it.
        server: carries out the calls.
        most: states.
        seconds: for which to search.
        first: stop when something was found.
    """
    return _Search(config, server).run(most, seconds, first=first)


def replay(config: Config, server: Server, trace: tuple[str, ...]) -> World:
    """Return the world after these steps, each of which is checked.

    Raises:
        Violation: something happened that must not.
        ValueError: a step cannot happen.
    """
    world = World(config, server)
    begin(world)
    for step in trace:
        if step == "rest":
            check_at_rest(world)
            continue
        if step != "age" and step not in (can := possible(world)):
            raise ValueError(f"{config.name}: {step!r} cannot happen here, only {can}")
        take(world, step)
        check(world)
    return world
