"""Run the store tests, simulated worlds and the search on a mutant, until one is red."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.mutants.judged import JUDGED
from tests.mutants.mutations import SHARED

if TYPE_CHECKING:
    from tests.mutants.mutations import Mutant

__all__ = ["STAGES", "Verdict", "first_red", "judge"]

ROOT = Path(__file__).parents[2]
_PYTEST = ("-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider")
#: What is run, the quickest first.
STAGES: dict[str, tuple[str, ...]] = {
    "the store tests": (*_PYTEST, "tests/store", "tests/control/test_repair.py", "tests/control/test_unreadable.py"),
    "simulated worlds": ("-m", "tests.simulation", "--seeds", "300", "--steps", "200"),
    "the search": (*_PYTEST, "tests/explore"),
}
#: Seconds for one of these: a mutant may go round for ever.
_LONGEST = 900.0


@dataclass(frozen=True)
class Verdict:
    """What came of a mutant.

    Attributes:
        mutant: the mutant.
        killed_by: the first of `STAGES` that was red, None if all were green.
        judged: why it changes nothing, if it is in `JUDGED`: then no stage was run.
    """

    mutant: Mutant
    killed_by: str | None
    judged: str | None = None

    @property
    def lives(self) -> bool:
        """Whether no stage was red, though one should be."""
        return self.killed_by is None and self.judged is None

    def __str__(self) -> str:
        why = self.killed_by or self.judged
        word = "ALIVE" if self.lives else "dead" if self.killed_by else "judged"
        return f"{word:6} {self.mutant}" + (f"  ({why})" if why else "")


def judge(mutant: Mutant) -> Verdict:
    """Run all stages on this mutant until one is red, unless it has been judged by hand."""
    if why := JUDGED.get((mutant.file, mutant.before.strip())):
        return Verdict(mutant, None, why)
    return Verdict(mutant, first_red(mutant))


def first_red(mutant: Mutant | None) -> str | None:
    """Run the stages on a copy of the repository that has this mutant, or none, and return the first that is red."""
    with TemporaryDirectory(prefix="throttle-mutant-") as folder:
        for name in ("celery_throttle", "tests", "docs", "pyproject.toml"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, Path(folder, name))
        if mutant:
            changed = Path(folder, SHARED, f"{mutant.file}.lua")
            changed.write_text(mutant.applied(changed.read_text("utf-8")), "utf-8")
        return next((stage for stage, arguments in STAGES.items() if not _is_green(folder, arguments)), None)


def _is_green(folder: str, arguments: tuple[str, ...]) -> bool:
    environment = os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            return process.wait(_LONGEST) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it and the servers that it has started, all of which are in its process group."""
    try:
        os.killpg(process.pid, 15)
    except ProcessLookupError:
        return
