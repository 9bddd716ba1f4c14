"""Let everything go wrong for some minutes, by seed, then judge the result."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from random import Random

from tests.chaos.mishaps import MISHAPS
from tests.chaos.service import Service
from tests.chaos.town import VISIBILITY, Town
from tests.chaos.traffic import Traffic
from tests.chaos.verdict import Verdict
from tests.support.waiting import until

#: Seconds until all is done, once there is peace. Each worker delivers messages of lost ones again every 100 s or so.
PATIENCE = VISIBILITY + 135
#: Keys of the store that may have something when all is done.
#: Kinds that have to run, and to leave nothing, once there is peace.
PROBES = ("late", "early", "shared_early", "told_early")
MAY_STAY = {"limits", "audit", "overrides", "locks", "rates", "turns", "ends", "meta", "records", "workers"}


def _go_on(town: Town, traffic: Traffic, chance: Random, only: set[str], seconds: float) -> None:
    """Have mishaps begin and go on for so long, then let those under way come to their end."""
    odds = {each: weight for each, weight in MISHAPS.items() if not only or each.__name__ in only}
    under_way: list[tuple[float, Iterator[float]]] = []
    next_one = time.monotonic()
    ends = next_one + seconds
    while (now := time.monotonic()) < ends or under_way:
        if next_one <= now < ends:
            [kind] = chance.choices([*odds], [*odds.values()])
            under_way.append((now, kind(town, traffic, chance)))
            next_one = now + chance.uniform(0.2, 2.2)
        due = [each for each in under_way if each[0] <= now]
        under_way = [each for each in under_way if each[0] > now]
        for _, mishap in due:
            if (wait := next(mishap, None)) is not None:
                under_way.append((now + wait, mishap))
        town.watch()
        time.sleep(0.02)


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
        service = Service(town.app, town.journal)
        traffic.begin()
        service.begin()
        only = set(filter(None, options.only.split(",")))
        _go_on(town, traffic, Random(f"{seed} mishaps"), only, options.minutes * 60)
        traffic.end()
        service.end()
        left = _make_peace(town, traffic)
        verdict = Verdict(town, traffic.published + service.calls)
        verdict.judge()
        return _report(verdict, left, len(traffic.published), town)


def _make_peace(town: Town, traffic: Traffic) -> list[str]:
    """Let all come to its end; return the rest."""

    def are_up() -> bool:
        town.watch()  # a worker that lost its broker in the last moment may end by itself
        return all(place.up for place in town.places)

    until(are_up, timeout=60)
    wrong = _wait_done(town, PATIENCE)
    probes = [each.task_id for name in PROBES for each in traffic.probe(name, 30)]
    wrong += [f"more tasks: {each}" for each in _wait_done(town, 20)]
    wrong += _left_of(town, probes) + _phantoms(town, traffic)
    for place in town.places:
        town.tell(place, "term")
    for place in town.places:
        for pause in town.ended(place):
            time.sleep(pause)
    return wrong + [f"left in the store: {key}" for key in town.in_store() if key.rpartition(":")[2] not in MAY_STAY]


def _left_of(town: Town, tasks: list[str]) -> list[str]:
    """Return the records of tasks that ran in peace; and print how many there are of all tasks, by pool."""
    with suppress(AssertionError):
        until(lambda: not set(tasks) & town.state.records().keys(), timeout=10)
    records = town.state.records()
    runs = [run for run in town.journal.runs() if run.task_id in records]
    pools = {run.task_id: town.pools.get(run.worker.partition("@")[0], "a service") for run in runs}
    for pool, count in sorted(Counter(pools.get(task, "none") for task in records).items()):
        print(f"left in the store by {pool}: {count} records")  # noqa: T201
    return [f"left by {pools.get(task)}: {task}: {records[task]}" for task in tasks if task in records]


def _phantoms(town: Town, traffic: Traffic) -> list[str]:
    """Return the locks of tasks that were never published: their publishers were interrupted."""
    sent = {each["task_id"] for each in town.journal.events() if each["event"] in ("sent", "claimed")}
    sent |= {each.task_id for each in traffic.published}
    locks = [lock for lock in town.state.throttle.locks(most=10_000) if lock.state == "queued"]
    return [f"a lock of a task that was never published: {lock}" for lock in locks if lock.task_id not in sent]


def _wait_done(town: Town, timeout: float) -> list[str]:
    ends = time.monotonic() + timeout
    while True:
        messages = {name: count for name, count in town.in_broker().items() if count}
        parked, held = town.state.parked, town.state.holders
        if not (messages or parked or held):
            return []
        if time.monotonic() > ends:
            return [f"not done {timeout:g} s after: {messages} in the broker, parked {parked}, held {held}"]
        time.sleep(0.2)


def _report(verdict: Verdict, left: list[str], published: int, town: Town) -> list[str]:
    with (town.directory / "troubles.txt").open("w") as file:
        file.write(f"wall clock {datetime.now().astimezone()} is {time.monotonic():.3f}\n")
        for each in sorted(town.troubles, key=lambda each: each.began):
            file.write(f"{each.began:.3f}-{each.ended:.3f} {each.what} {each.worker or 'all'}\n")
    violations = verdict.violations + town.wrong + left
    for line in violations:
        print(f"VIOLATION {line}")  # noqa: T201
    for why, count in sorted(verdict.excused.items()):
        print(f"allowed {count} x {why}")  # noqa: T201
    runs, happened = len(town.journal.runs()), len(town.troubles)
    print(f"{published} published, {runs} runs, {happened} troubles, {len(violations)} violations", flush=True)  # noqa: T201
    return violations


if __name__ == "__main__":
    sys.exit(main())
