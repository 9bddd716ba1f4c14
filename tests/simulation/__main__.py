"""Play many seeds (``python -m tests.simulation --seeds 100000``) or one (``--seed 17 -v``).

Each process plays one after another, with a server of its own.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.util import Finalize
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.invariants import Violation
from tests.simulation.peace import last_questions, peace
from tests.simulation.scene import KEPT, Scene, make_scene
from tests.simulation.server import DEFECTS, Defect, Server, serving
from tests.simulation.steps import FAULTS, MEDDLE, Steps
from tests.simulation.workers import install
from tests.simulation.world import World

if TYPE_CHECKING:
    from typing_extensions import Self

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


class Player:
    """A process that plays; a context manager."""

    def __init__(self, defect: Defect | None = None) -> None:
        self._serving = serving(Server, defect)
        self._scenes: dict[int, Scene] = {}

    def __enter__(self) -> Self:
        self._server = self._serving.__enter__()
        install()
        return self

    def __exit__(self, *_: object) -> None:
        self._serving.__exit__(None, None, None)

    def play(self, seed: int, steps: int, *, faults: Faults = None, verbose: bool = False) -> Played:
        """Play one seed to its end, or to the first thing that must not happen."""
        scene = self._scene(seed % _SCENES)
        self._server.ask("FLUSHALL")
        world = World(seed, self._server, scene, verbose=verbose)
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

    def shrink(self, played: Played) -> Played:
        """Return the same seed with as few steps as still go wrong, found by halving."""
        least, best = 0, played
        while least < min(best.at, best.steps):
            middle = (least + min(best.at, best.steps)) // 2
            again = self.play(played.seed, middle, faults=played.faults)
            if again.violation is None:
                least = middle + 1
            else:
                best = again
        return best

    def _scene(self, number: int) -> Scene:
        if number not in self._scenes:
            self._scenes[number] = make_scene(Random(f"scene {number}"), fails=number == _FAILS)
        return self._scenes[number]


def play_many(
    seeds: Sequence[int],
    steps: int,
    jobs: int,
    most: int,
    *,
    faults: Faults = None,
    tell_all: bool = False,
    defect: Defect | None = None,
) -> int:
    """Play seeds in several processes, print those that went wrong and how to see that again; how many did."""
    began, wrong, done = time.monotonic(), 0, 0
    with multiprocessing.get_context("fork").Pool(jobs, _begin, (defect,)) as pool:
        for played in pool.imap_unordered(_play, [(seed, steps, faults) for seed in seeds], chunksize=10):
            done += 1
            if played.violation is not None:
                wrong += 1
            if tell_all or played.violation is not None:
                print(played, flush=True)  # noqa: T201
            if wrong >= most:
                pool.terminate()
                break
        else:
            pool.close()  # no process is interrupted while they take their servers down
        pool.join()
    took = time.monotonic() - began
    print(f"{done} seeds of {steps} steps in {took:.1f} s: {wrong} went wrong")  # noqa: T201
    return wrong


_player: Player


def _begin(defect: Defect | None) -> None:
    global _player  # noqa: PLW0603 - one for each process
    _player = Player(defect).__enter__()
    # The pool ends its processes by SIGTERM: each is to take its server and directory with it.
    Finalize(_player, _player.__exit__, exitpriority=1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    gc.freeze()
    gc.set_threshold(100_000)  # a world is over soon


def _play(what: tuple[int, int, Faults]) -> Played:
    seed, steps, faults = what
    played = _player.play(seed, steps, faults=faults)
    return played if played.violation is None else _player.shrink(played)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--steps", type=int, default=200, help="before the world is left in peace")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, help="play only this one, and print what happened and its digest")
    parser.add_argument("--most", type=int, default=10, help="stop after so many violations")
    parser.add_argument("--faults", help=f"what may go wrong, whatever the seed says: {', '.join([*FAULTS, MEDDLE])}")
    parser.add_argument("--digests", action="store_true", help="print what came of every seed")
    parser.add_argument("--kept", action="store_true", help="the broker keeps what is parked until a replica has it")
    parser.add_argument("--defect", help=f"a defect of the scripts: {', '.join(each.name for each in DEFECTS)}")
    parser.add_argument("-v", "--verbose", action="store_true", help="with --seed: print every step")
    options = parser.parse_args()
    if options.kept:
        os.environ[KEPT] = "1"
    faults = None if options.faults is None else tuple(filter(None, options.faults.split(",")))
    defect = next((each for each in DEFECTS if each.name == options.defect), None)
    if options.seed is None:
        seeds = range(options.first, options.first + options.seeds)
        most, tell_all = options.most, options.digests
        wrong = play_many(seeds, options.steps, options.jobs, most, faults=faults, tell_all=tell_all, defect=defect)
        return int(wrong > 0)
    with Player(defect) as player:
        played = player.play(options.seed, options.steps, faults=faults, verbose=options.verbose)
    print(played)  # noqa: T201
    return int(played.violation is not None)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of text would be another in each process.
        command = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
