"""Run the store tests, simulated worlds and the search on a mutant, each in a copy of the repository."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.mutants.mutations import SHARED, Mutant

__all__ = ["STAGES", "copy_of_repository", "is_green"]

ROOT = Path(__file__).parents[2]
_PYTEST = ("-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider")
#: The runs, the quickest first.
STAGES: dict[str, tuple[str, ...]] = {
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
def copy_of_repository() -> Iterator[Path]:
    """Yield a copy of all that the stages read. It takes one mutant after the other, so modules are compiled once."""
    with TemporaryDirectory(prefix="throttle-mutant-") as folder:
        for name in ("celery_throttle", "tests", "docs", "pyproject.toml"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, Path(folder, name))
        yield Path(folder)


def is_green(stage: str, mutant: Mutant | None, folder: Path) -> bool:
    """Run a stage on a copy of the repository that has this mutant for as long as that takes, or none."""
    if mutant is None:
        return _passes(folder, STAGES[stage])
    changed = folder / SHARED / f"{mutant.file}.lua"
    text = changed.read_text("utf-8")
    changed.write_text(mutant.applied(text), "utf-8")
    try:
        return _passes(folder, STAGES[stage])
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
