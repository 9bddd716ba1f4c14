"""Real ``celery worker`` processes, and their end whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from celery_throttle.embedded import bound_to_parent

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

ROOT = Path(__file__).resolve().parents[2]
STOP_TIMEOUT = 8.0


class WorkerFailed(Exception):
    """A worker did not come up, or ended by itself; the message has the end of its log."""


class Worker:
    """One ``celery worker`` with its pool, in a session of its own."""

    def __init__(self, name: str, concurrency: int, directory: Path) -> None:
        self.name = name
        self.killed_at: float | None = None
        self._log = directory / f"{name}.log"
        command = [sys.executable, "-m", "celery", "-A", "examples.demo.app", "worker"]
        command += ["-n", f"{name}@%h", "-c", str(concurrency), "-l", "INFO"]
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C in the terminal reaches only the demo, which then ends the workers in order.
            self._process = subprocess.Popen(
                bound_to_parent(command),
                cwd=ROOT,
                # What a killed worker leaves behind goes with the directory of its log.
                env=os.environ | {"TMPDIR": str(Path(log.name).parent)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The pid of its main process."""
        return self._process.pid

    @property
    def ready(self) -> bool:
        """Whether it has said that it takes tasks."""
        self.check()
        return f"{self.name}@" in self._text() and " ready." in self._text()

    def check(self) -> None:
        """Raise `WorkerFailed` if it ended and nobody killed it."""
        if self.killed_at is None and self._process.poll() is not None:
            raise self.failure(f"ended with status {self._process.returncode}")

    def kill(self) -> None:
        """SIGKILL its main process, as the OOM killer would; its children follow."""
        self.killed_at = time.monotonic()
        os.kill(self.pid, signal.SIGKILL)

    def ask_to_stop(self) -> None:
        """Ask for a warm shutdown."""
        if self.killed_at is None and self._process.poll() is None:
            self._process.terminate()

    def end(self, deadline: float) -> None:
        """Wait until it has ended; at the deadline end it and its children by force."""
        if self.killed_at is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, deadline - time.monotonic()))
        if self._process.returncode is None:
            # Its session is ours alone. The killed one was not waited for until here: its number is still its own.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()

    def failure(self, why: str) -> WorkerFailed:
        """The error to raise, with the end of its log."""
        tail = "\n".join(self._text().splitlines()[-25:])
        return WorkerFailed(f"Worker {self.name} {why}. The end of its log:\n{tail}")

    def _text(self) -> str:
        return self._log.read_text(errors="replace")


class Workers:
    """The workers of one run: ``with Workers(4, directory) as workers: workers.start("one")``."""

    def __init__(self, concurrency: int, directory: Path) -> None:
        self.all: list[Worker] = []
        self._concurrency, self._directory = concurrency, directory

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        deadline = time.monotonic()
        if error is None:
            deadline += STOP_TIMEOUT
            for worker in self.all:
                worker.ask_to_stop()
        for worker in self.all:
            worker.end(deadline)

    def start(self, name: str) -> Worker:
        """Start one; it takes some seconds until it is ready."""
        worker = Worker(name, self._concurrency, self._directory)
        self.all.append(worker)
        return worker

    def check(self) -> None:
        """Raise `WorkerFailed` if one ended that nobody killed."""
        for worker in self.all:
            worker.check()
