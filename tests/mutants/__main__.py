"""``python -m tests.mutants``: change the shared Lua files, a line at a time, and print unnoticed changes.

The store tests, simulated worlds and the search are run on each mutant, each in a copy of the repository.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

from tests.mutants.mutations import JUDGED, SHARED, Mutant, mutants

ROOT = Path(__file__).parents[2]
_PYTEST = ("-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider")
#: The runs, the quickest first.
_STAGES: dict[str, tuple[str, ...]] = {
    "the store tests": (
        *(*_PYTEST, "tests/store"),
        *(f"tests/control/test_{each}.py" for each in ("repair", "unreadable", "lost_runs")),
    ),
    "simulated worlds": ("-m", "tests.simulation", "--seeds", "300", "--steps", "200"),
    "the search": (*_PYTEST, "tests/explore"),
}
#: Seconds for one of these: a mutant may go round for ever.
_LONGEST = 900.0


@contextmanager
def _copy_of_repository() -> Iterator[Path]:
    """Yield a copy of all that the stages read. It takes one mutant after the other, so modules are compiled once."""
    with TemporaryDirectory(prefix="throttle-mutant-") as folder:
        for name in ("celery_throttle", "tests", "docs", "pyproject.toml"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, Path(folder, name))
        yield Path(folder)


def _is_green(stage: str, mutant: Mutant | None, folder: Path) -> bool:
    """Run a stage on a copy of the repository that has this mutant for as long as that takes, or none."""
    if mutant is None:
        return _passes(folder, _STAGES[stage])
    changed = folder / SHARED / f"{mutant.file}.lua"
    text = changed.read_text("utf-8")
    changed.write_text(mutant.applied(text), "utf-8")
    try:
        return _passes(folder, _STAGES[stage])
    finally:
        changed.write_text(text, "utf-8")


def _passes(folder: Path, arguments: tuple[str, ...]) -> bool:
    environment = os.environ | {"PYTHONPATH": str(folder)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **quiet) as process:
        try:
            return process.wait(_LONGEST) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)  # with the servers that it has started


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
            copies.put(stack.enter_context(_copy_of_repository()))
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
            return _is_green(stage, mutant, folder)
        finally:
            copies.put(folder)

    for stage in _STAGES:
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
