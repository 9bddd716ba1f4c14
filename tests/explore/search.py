"""Search all states of a world, breadth first: each is checked, and has to come to a fair end."""

from __future__ import annotations

import hashlib
import re
from collections import deque
from dataclasses import dataclass

from tests.explore.checks import check, check_at_rest, is_done
from tests.explore.steps import begin, possible, take
from tests.explore.store import Server
from tests.explore.world import World
from tests.explore.worlds import Config
from tests.simulation.invariants import Violation

__all__ = ["Found", "Searched", "replay", "search"]

#: The next steps if nothing goes wrong any more.
_FAIR = (
    *("call", "hear", "stray-lost", "renewal", "start", "steer", "say", "end", "deliver", "publish", "leave"),
    *("confirm", "claim-ends"),
)
_LOOKS, _MOST_AGES, _MOST_FAIR = 4, 14, 400


@dataclass(frozen=True)
class Found:
    """A violation, and the steps to it."""

    what: str
    trace: tuple[str, ...]

    def __str__(self) -> str:
        steps = "".join(f"\n    {step}" for step in self.trace)
        return f"{self.what}, after {len(self.trace)} steps:{steps}"


class Searched:
    """The search of a world: its states, breadth first.

    Attributes:
        found: the first violation of each kind.
        left: states that were not followed up, since there were too many.
    """

    def __init__(self, config: Config, server: Server) -> None:
        self._config, self._server = config, server
        server.forget()
        self.found: dict[str, Found] = {}
        self.left: deque[tuple[int, bytes]] = deque()
        self._seen: set[bytes] = set()
        self._good: set[bytes] = set()  # states that come to a fair end
        self._came: list[tuple[int, str]] = []  # from which state, by which step

    @property
    def states(self) -> int:
        return len(self._came)

    def __str__(self) -> str:
        whole = f"cut, {len(self.left)} not followed" if self.left else "whole"
        return f"{self._config.name}: {self.states} states, {whole}, {len(self.found)} found"

    def run(self, most: int, *, first: bool) -> None:
        """Follow so many states, or only until something is found."""
        world = World(self._config, self._server)
        begin(world)
        self._note(world, 0, "")
        while self.left and self.states < most and not (first and self.found):
            self._follow(*self.left.popleft())

    def _follow(self, number: int, saved: bytes) -> None:
        world = World.load(self._config, self._server, saved)
        steps = possible(world)
        if _fair_step(steps) is None:
            self._end(number, saved)
        for step in steps:
            world = World.load(self._config, self._server, saved)
            try:
                take(world, step)
                self._note(world, number, step)
            except Violation as error:
                self._wrong(error, number, (step,))

    def _note(self, world: World, number: int, step: str) -> None:
        key = _digest(world)
        if key not in self._seen:
            self._seen.add(key)
            self._came.append((number, step))
            check(world)
            self.left.append((self.states - 1, world.save()))

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
        self.found.setdefault(kind, Found(what, self._trace(number) + more))

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


def search(config: Config, server: Server, *, most: int = 10**9, first: bool = False) -> Searched:
    """Search a world: so many states at most, or only until something is found."""
    searched = Searched(config, server)
    searched.run(most, first=first)
    return searched


def replay(config: Config, server: Server, trace: tuple[str, ...]) -> World:
    """Return the world after these steps, each of which is checked."""
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
