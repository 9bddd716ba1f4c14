"""Play many seeds (``python -m tests.simulation --seeds 100000``) or one (``--seed 17 -v``)."""

from __future__ import annotations

import argparse
import os
import sys

from tests.simulation.play import Player, play_many
from tests.simulation.scene import KEPT, KINDS
from tests.simulation.server import DEFECTS
from tests.simulation.steps import FAULTS, MEDDLE


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--steps", type=int, default=200, help="before the world is left in peace")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, help="play only this one, and print what happened and its digest")
    parser.add_argument("--most", type=int, default=10, help="stop after so many violations")
    parser.add_argument("--faults", help=f"what may go wrong, whatever the seed says: {', '.join([*FAULTS, MEDDLE])}")
    parser.add_argument("--kinds", help="only these tasks are published; see scene.py")
    parser.add_argument("--digests", action="store_true", help="print what came of every seed")
    parser.add_argument("--kept", action="store_true", help="the broker keeps what is parked until a replica has it")
    parser.add_argument("--defect", help=f"a defect of the scripts: {', '.join(each.name for each in DEFECTS)}")
    parser.add_argument("-v", "--verbose", action="store_true", help="with --seed: print every step")
    options = parser.parse_args()
    if options.kept:
        os.environ[KEPT] = "1"
    if options.kinds:
        os.environ[KINDS] = options.kinds
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
