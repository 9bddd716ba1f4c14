"""``python -m tests.mutants``: change the shared Lua files, a line at a time, and print unnoticed changes."""

from __future__ import annotations

import argparse
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.mutations import JUDGED, Mutant, mutants
from tests.mutants.run import STAGES, copy_of_repository, is_green


def _say(text: object) -> None:
    print(text, flush=True)  # noqa: T201


def main() -> int:
    """Judge mutants, and print those that live."""
    asked = _parser().parse_args()
    found = [each for each in mutants() if not asked.file or each.file in asked.file]
    random.Random(asked.seed).shuffle(found)
    taken = found[: asked.most or None]
    judged = {each: JUDGED[each.key] for each in taken if each.key in JUDGED}
    for mutant, why in judged.items():
        _say(f"judged {mutant}  ({why})")
    began = time.monotonic()
    with ExitStack() as stack:
        copies: SimpleQueue[Path] = SimpleQueue()
        for _ in range(asked.jobs):
            copies.put(stack.enter_context(copy_of_repository()))
        left = _survivors([each for each in taken if each not in judged], copies, asked.jobs)
    if left is None:
        return 2
    for mutant in left:
        _say(f"ALIVE  {mutant}")
    took = time.monotonic() - began
    _say(f"{len(taken)} of {len(found)} mutants in {took:.0f} s: {len(judged)} judged, {len(left)} live")
    return int(bool(left))


def _survivors(left: list[Mutant], copies: SimpleQueue[Path], jobs: int) -> list[Mutant] | None:
    """Run each stage on those that no stage before it has found; None if one is red without a mutant."""

    def lives(mutant: Mutant | None) -> bool:
        folder = copies.get()
        try:
            return is_green(stage, mutant, folder)
        finally:
            copies.put(folder)

    for stage in STAGES:
        if not lives(None):
            _say(f"{stage}: red without any mutant, so nothing can be judged")
            return None
        living = []
        with ThreadPoolExecutor(jobs) as pool:
            for mutant, lived in zip(left, pool.map(lives, left), strict=True):
                _say(f"{'lives ' if lived else 'dead  '} {mutant}  ({stage})")
                living += [mutant] * lived
        left = living
    return left


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="chooses those that are taken")
    parser.add_argument("--most", type=int, default=100, help="how many; 0: all")
    parser.add_argument("--file", action="append", help="only of this shared file; any number")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    return parser


if __name__ == "__main__":
    sys.exit(main())
