"""An example's own command, run as a user runs it, and its remains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.waiting import until
from tests.support.workers import ROOT, alive

if TYPE_CHECKING:
    from typing_extensions import Self

VARIABLE = "THIS_EXAMPLE"


class Command:
    """``python -m examples.NAME --json --progress --quick``, whose temporary files all go to a directory of ours."""

    def __init__(self, name: str, directory: Path, *smaller: str, progress: bool = True) -> None:
        self._files, self._out, self._err = directory / "files", directory / "out", directory / "err"
        self._files.mkdir()
        # Every process that it starts inherits the mark.
        self._mark = uuid.uuid4().hex
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # A shell has started us in the background, and children inherit it.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        command = [sys.executable, "-m", f"examples.{name}", "--json", *(["--progress"] if progress else [])]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                [*command, *(smaller or ("--quick",))],
                cwd=ROOT,
                env=os.environ | {VARIABLE: self._mark, "TMPDIR": str(self._files)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # All that it started follows it.
        self._process.kill()
        self._process.wait()

    def wait(self, timeout: float = 60.0) -> int:
        """Wait until it ends; return its status."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"Not at its end within {timeout:g} s:\n{self.progress()}") from None

    def summary(self) -> dict[str, Any]:
        """Return its output, when it has ended well."""
        assert self.wait() == 0, f"{self._out.read_text()}\n{self.progress()}"
        found: dict[str, Any] = json.loads(self._out.read_text())
        return found

    def interrupt(self, number: int, when: str) -> int:
        """Send it a signal when it prints this; return its status."""
        until(lambda: when in self.progress(), describe=self.progress)
        assert len(self.pids()) > 4  # else there is nothing to leave behind
        self._process.send_signal(number)
        return self.wait()

    def progress(self) -> str:
        """Its output on stderr."""
        return self._err.read_text()

    def pids(self) -> list[int]:
        """The pids of all processes that carry its mark."""
        found = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
        return [pid for pid in found if alive(pid) and self._mark in _read(pid, "environ")]

    def check_nothing_left(self) -> None:
        """Fail if there is a process or a file of it."""
        # A killed process may need a moment to be gone.
        until(lambda: not self.pids(), describe=lambda: [_read(pid, "cmdline") for pid in self.pids()])
        assert list(self._files.iterdir()) == []


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace").replace("\0", " ")
    except OSError:  # gone, or of another user
        return ""
