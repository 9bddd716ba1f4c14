"""``python -m tests.mutants``: change the shared Lua files, a line at a time, and print what no test finds."""

from __future__ import annotations

import argparse
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.mutants.mutations import mutants
from tests.mutants.run import first_red, judge


def _say(text: object) -> None:
    print(text, flush=True)  # noqa: T201


def main() -> int:
    """Judge mutants, and print those that live."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="chooses those that are taken")
    parser.add_argument("--most", type=int, default=100, help="how many; 0: all")
    parser.add_argument("--file", action="append", help="only of this shared file; any number")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    asked = parser.parse_args()
    found = [each for each in mutants() if not asked.file or each.file in asked.file]
    random.Random(asked.seed).shuffle(found)
    taken = found[: asked.most or None]
    if red := first_red(None):
        _say(f"{red}: red without any mutant, so nothing can be judged")
        return 2
    began, alive = time.monotonic(), 0
    with ThreadPoolExecutor(asked.jobs) as pool:
        for verdict in pool.map(judge, taken):
            _say(verdict)
            alive += verdict.lives
    _say(f"{len(taken)} of {len(found)} mutants in {time.monotonic() - began:.0f} s: {alive} live")
    return int(alive > 0)


if __name__ == "__main__":
    sys.exit(main())
