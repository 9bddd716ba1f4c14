"""``celery`` as a shell runs it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from tests.support.nursery import Nursery
from tests.support.waiting import HANGS_AFTER
from tests.support.workers import ROOT

__all__ = ["CELERY", "Ended", "Shell"]

#: As `python -m celery`, but with the repository at the END of the path: an installed wheel comes before it.
CELERY = (
    "import sys; sys.path.append(sys.argv.pop(1)); sys.argv[0] = 'celery'; from celery.__main__ import main; main()"
)


class Ended(NamedTuple):
    """The output of a command, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def rows(self) -> list[list[str]]:
        """The cells of its tables, which stand at least two blanks apart, without those that are empty."""
        return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in self.lines]

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Shell:
    """Runs ``celery`` as a process of its own: forked from a nursery, as far as that has its imports."""

    def __init__(self, url: str, directory: Path, nursery: Nursery | None) -> None:
        self.env = os.environ | {"BROKER_URL": url, "RESULT_BACKEND": url.removesuffix("/0") + "/1"}
        self.directory = directory
        self._nursery = nursery

    def run(self, *args: str, env: Mapping[str, str] | None = None, program: str = "") -> Ended:
        """Run ``celery`` with these arguments, or a program of the test's own."""
        if self._nursery and not program and "PYTHONPATH" not in (env or {}):
            return self._forked(self._nursery, args, self.env | dict(env or {}))
        done = subprocess.run(
            [sys.executable, "-c", program or CELERY, str(ROOT), *args],
            cwd=self.directory,
            env=self.env | dict(env or {}),
            capture_output=True,
            text=True,
            timeout=HANGS_AFTER,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def on_terminal(self, *args: str, **env: str) -> str:
        """Return the output of ``celery`` on a terminal of 80 columns and 24 lines."""
        ours, its = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-c", CELERY, str(ROOT), *args],
            cwd=self.directory,
            env=self.env | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24", **env},
            stdin=subprocess.DEVNULL,
            stdout=its,
            stderr=its,
        )
        os.close(its)
        parts = []
        with suppress(OSError):  # the other end is closed
            while part := os.read(ours, 4096):
                parts.append(part)
        os.close(ours)
        assert process.wait(HANGS_AFTER) == 0
        return b"".join(parts).decode()

    def _forked(self, nursery: Nursery, args: Sequence[str], env: Mapping[str, str]) -> Ended:
        with TemporaryFile() as out, TemporaryFile() as err:
            code = nursery.start(args, self.directory, env, out, err).wait(HANGS_AFTER)
            texts = [os.pread(each.fileno(), 1 << 20, 0).decode() for each in (out, err)]
        return Ended(code, *texts)
