"""Play many seeds (``python -m tests.simulation --seeds 100000``) or one (``--seed 17 -v``).

Each process plays one after another, with a server of its own.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from multiprocessing.util import Finalize
from random import Random

from tests.simulation.invariants import Violation
from tests.simulation.peace import last_questions, peace
from tests.simulation.scene import KEPT, Scene, make_scene
from tests.simulation.server import DEFECTS, Defect, Server, serving
from tests.simulation.steps import FAULTS, MEDDLE, Steps
from tests.simulation.workers import install
from tests.simulation.world import World

_SCENES = 6
#: That of them whose tasks fail while the store is away.
_FAILS = 4
#: The faults, None for those of the seed.
Faults = tuple[str, ...] | None


@dataclass(frozen=True)
class Played:
    """The result of a seed.

    Attributes:
        violation: the broken invariant, None if all went well.
        at: the step at which it was found; that many steps show it again.
        digest: of everything that happened.
        faults: the possible faults, None for those of the seed.
    """

    seed: int
    steps: int
    violation: str | None
    at: int
    digest: str
    faults: Faults = None

    def __str__(self) -> str:
        if self.violation is None:
            return f"seed {self.seed}: well, {self.digest}"
        steps = min(self.at, self.steps)
        faults = "" if self.faults is None else f"--faults '{','.join(self.faults)}' "
        kept = "--kept " if KEPT in os.environ else ""
        again = f"python -m tests.simulation --seed {self.seed} --steps {steps} {faults}{kept}-v"
        return f"seed {self.seed}, step {self.at}: {self.violation}\n    {again}"


def play(server: Server, seed: int, steps: int, *, faults: Faults = None, verbose: bool = False) -> Played:
    """Play one seed to its end, or to the first thing that must not happen."""
    install()
    server.ask("FLUSHALL")
    world = World(seed, server, _scene(seed % _SCENES), verbose=verbose)
    violation = None
    try:
        going = Steps(world, faults)
        for _ in range(steps):
            going.step()
        peace(going)
        last_questions(going)
    except Violation as error:
        violation = str(error)
        for worker in world.workers if verbose else ():
            print(worker.inside())  # noqa: T201
        for item in world.network.contents().items() if verbose else ():
            print(*item)  # noqa: T201
    except Exception as error:
        if verbose:
            raise
        violation = f"{type(error).__name__}: {error}"
    return Played(seed, steps, violation, world.step, world.digest, faults)


@cache
def _scene(number: int) -> Scene:
    return make_scene(Random(f"scene {number}"), fails=number == _FAILS)


def shrink(server: Server, played: Played) -> Played:
    """Return the same seed with as few steps as still go wrong, found by halving."""
    least, best = 0, played
    while least < min(best.at, best.steps):
        middle = (least + min(best.at, best.steps)) // 2
        again = play(server, played.seed, middle, faults=played.faults)
        if again.violation is None:
            least = middle + 1
        else:
            best = again
    return best


def play_many(options: argparse.Namespace) -> int:
    """Play seeds in several processes, print those that went wrong and how to see that again; how many did."""
    began, wrong, done = time.monotonic(), 0, 0
    seeds = range(options.first, options.first + options.seeds)
    with ProcessPoolExecutor(options.jobs, get_context("fork"), _begin, (options.defect,)) as pool:
        for played in pool.map(partial(_play, options=options), seeds):
            done += 1
            wrong += played.violation is not None
            if options.digests or played.violation is not None:
                print(played, flush=True)  # noqa: T201
            if wrong >= options.most:
                pool.shutdown(cancel_futures=True)
                break
    took = time.monotonic() - began
    print(f"{done} seeds of {options.steps} steps in {took:.1f} s: {wrong} went wrong")  # noqa: T201
    return wrong


_server: Server


def _begin(defect: Defect | None) -> None:
    global _server  # noqa: PLW0603 - one for each process
    stack = ExitStack()
    _server = stack.enter_context(serving(Server, defect))
    Finalize(_server, stack.close, exitpriority=1)
    gc.freeze()
    gc.set_threshold(100_000)  # a world is over soon


def _play(seed: int, options: argparse.Namespace) -> Played:
    played = play(_server, seed, options.steps, faults=options.faults)
    return played if played.violation is None else shrink(_server, played)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--steps", type=int, default=200, help="before the world is left in peace")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, help="play only this one, and print what happened and its digest")
    parser.add_argument("--most", type=int, default=10, help="stop after so many violations")
    parser.add_argument(
        "--faults", type=_faults, help=f"what may go wrong, whatever the seed says: {', '.join([*FAULTS, MEDDLE])}"
    )
    parser.add_argument("--digests", action="store_true", help="print what came of every seed")
    parser.add_argument("--kept", action="store_true", help="the broker keeps what is parked until a replica has it")
    parser.add_argument("--defect", help=f"a defect of the scripts: {', '.join(each.name for each in DEFECTS)}")
    parser.add_argument("-v", "--verbose", action="store_true", help="with --seed: print every step")
    options = parser.parse_args()
    if options.kept:
        os.environ[KEPT] = "1"
    options.defect = next((each for each in DEFECTS if each.name == options.defect), None)
    if options.seed is None:
        return int(play_many(options) > 0)
    with serving(Server, options.defect) as server:
        played = play(server, options.seed, options.steps, faults=options.faults, verbose=options.verbose)
    print(played)  # noqa: T201
    return int(played.violation is not None)


def _faults(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of text would be another in each process.
        command = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
