"""Let everything go wrong for some minutes, by seed, then judge the result."""

from __future__ import annotations

import argparse
import heapq
import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from random import Random

from tests.chaos.mishaps import MISHAPS
from tests.chaos.town import VISIBILITY, Town
from tests.chaos.traffic import Traffic
from tests.chaos.verdict import Verdict
from tests.support.waiting import until

#: Seconds until all is done, once there is peace. Each worker delivers messages of lost ones again every 100 s or so.
PATIENCE = VISIBILITY + 135
#: Keys of the store that may have something when all is done.
MAY_STAY = {"limits", "audit", "overrides", "locks", "rates", "turns", "ends", "meta", "records", "workers"}


class Chaos:
    """One run."""

    def __init__(self, town: Town, traffic: Traffic, chance: Random, only: set[str]) -> None:
        self._town, self._traffic, self._chance = town, traffic, chance
        self._under_way: list[tuple[float, int, str, Iterator[float]]] = []
        self._count = itertools.count()
        self._mishaps = {each: weight for each, weight in MISHAPS.items() if not only or each.__name__ in only}

    def go_on(self, seconds: float) -> None:
        """Have mishaps begin and go on for so long, then let those under way come to their end."""
        ends = next_one = time.monotonic()
        ends += seconds
        while time.monotonic() < ends or self._under_way:
            now = time.monotonic()
            if next_one <= now < ends:
                self._begin()
                next_one = now + self._chance.uniform(0.2, 2.2)
            while self._under_way and self._under_way[0][0] <= now:
                _, _, name, mishap = heapq.heappop(self._under_way)
                self._advance(name, mishap)
            self._town.watch()
            time.sleep(0.02)

    def _begin(self) -> None:
        [mishap] = self._chance.choices([*self._mishaps], [*self._mishaps.values()])
        self._advance(mishap.__name__, mishap(self._town, self._traffic, self._chance))

    def _advance(self, name: str, mishap: Iterator[float]) -> None:
        wait = next(mishap, None)
        if wait is not None:
            heapq.heappush(self._under_way, (time.monotonic() + wait, next(self._count), name, mishap))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="of chaos, before there is peace")
    parser.add_argument("--seed", type=int, help="of what goes wrong, and of what is published; by default a new one")
    parser.add_argument("--workers", type=int, default=4, help="beside one of another release that comes and goes")
    parser.add_argument("--rate", type=float, default=35.0, help="calls a second")
    parser.add_argument("--only", default="", help=f"these mishaps: {','.join(each.__name__ for each in MISHAPS)}")
    parser.add_argument(
        "--keep", action="store_true", help="leave journal and logs where they are, also if all is well"
    )
    options = parser.parse_args()
    seed = Random().randrange(10**6) if options.seed is None else options.seed
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"seed {seed}, in {directory}", flush=True)  # noqa: T201
    violations = _run(options, seed, directory)
    if not violations and not options.keep:
        shutil.rmtree(directory)
    return int(bool(violations))


def _run(options: argparse.Namespace, seed: int, directory: Path) -> list[str]:
    with Town(directory, options.workers) as town:
        for place in town.places:
            town.start(place)
        until(lambda: all(place.up for place in town.places), timeout=60)
        traffic = Traffic(town.app, options.rate, seed)
        traffic.begin()
        only = set(filter(None, options.only.split(",")))
        Chaos(town, traffic, Random(f"{seed} mishaps"), only).go_on(options.minutes * 60)
        traffic.end()
        left = _make_peace(town, traffic)
        verdict = Verdict(town, traffic.published)
        verdict.judge()
        return _report(verdict, left, len(traffic.published), town)


def _make_peace(town: Town, traffic: Traffic) -> list[str]:
    """Let all come to its end; return the rest."""
    until(lambda: all(place.up for place in town.places), timeout=60)
    wrong = _wait_done(town, PATIENCE)
    traffic.probe("late", 30)
    wrong += [f"30 more tasks: {each}" for each in _wait_done(town, 20)]
    for place in town.places:
        town.tell(place, "term")
    for place in town.places:
        for pause in town.ended(place):
            time.sleep(pause)
    for key, size in town.in_store().items():
        name = key.rpartition(":")[2]
        if size and name not in MAY_STAY:
            wrong.append(f"left in the store: {size} in {key}")
    return wrong


def _wait_done(town: Town, timeout: float) -> list[str]:
    def left() -> list[str]:
        messages = {name: count for name, count in town.in_broker().items() if count}
        waiting, held = town.state.parked, town.state.holders
        return [f"{messages} in the broker, parked {waiting}, held {held}"] if messages or waiting or held else []

    ends = time.monotonic() + timeout
    while (wrong := left()) and time.monotonic() < ends:
        time.sleep(0.2)
    return [f"not done {timeout:g} s after: {each}" for each in wrong]


def _report(verdict: Verdict, left: list[str], published: int, town: Town) -> list[str]:
    with (town.directory / "troubles.txt").open("w") as file:
        file.write(f"wall clock {datetime.now().astimezone()} is {time.monotonic():.3f}\n")
        for each in sorted(town.troubles, key=lambda each: each.began):
            file.write(f"{each.began:.3f}-{each.ended:.3f} {each.what} {each.worker or 'all'}\n")
    violations = verdict.violations + left
    for line in violations:
        print(f"VIOLATION {line}")  # noqa: T201
    for why, count in sorted(verdict.excused.items()):
        print(f"allowed {count} x {why}")  # noqa: T201
    runs, happened = len(town.journal.runs()), len(town.troubles)
    print(f"{published} published, {runs} runs, {happened} troubles, {len(violations)} violations", flush=True)  # noqa: T201
    return violations


if __name__ == "__main__":
    sys.exit(main())
