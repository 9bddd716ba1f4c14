"""The processes of an example: web servers and Celery workers, each in a session of its own, all ended at the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from celery_throttle.embedded import bound_to_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from typing_extensions import Self

ROOT = Path(__file__).resolve().parents[1]
START_TIMEOUT = 30.0
STOP_TIMEOUT = 8.0
LOOK_EVERY = 0.02


class ProcessFailed(Exception):
    """A process did not come up in time, or ended by itself; the message has the end of its log."""


class Process:
    """One process, started by the constructor; ``ready`` is the text in its log once it is up."""

    def __init__(
        self, name: str, arguments: Sequence[str], ready: str, directory: Path, listener: socket.socket | None = None
    ) -> None:
        self.name = name
        self.killed_at: float | None = None
        self._ready = ready
        self._log = directory / f"{name}.log"
        with self._log.open("wb") as log:
            # A session of its own, so that Ctrl-C reaches only the example, which then ends all processes in order.
            self._process = subprocess.Popen(
                bound_to_parent([sys.executable, "-m", *arguments]),
                cwd=ROOT,
                # A killed pool of Celery leaves a directory in TMPDIR.
                env=os.environ | {"TMPDIR": str(directory)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[listener.fileno()] if listener else [],
            )

    @property
    def pid(self) -> int:
        """The process id of the main process."""
        return self._process.pid

    @property
    def ready(self) -> bool:
        """Whether the log shows that it is up."""
        self.check()
        return self._ready in self._text()

    def check(self) -> None:
        """Raise `ProcessFailed` if the process ended by itself."""
        if self.killed_at is None and self._process.poll() is not None:
            raise self.failure(f"ended with status {self._process.returncode}")

    def freeze(self) -> None:
        """Send SIGSTOP to the process and its children."""
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Send SIGCONT to the process and its children."""
        os.killpg(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL to the process and its children, as if the machine were gone."""
        self.killed_at = time.monotonic()
        os.killpg(self.pid, signal.SIGKILL)

    def kill_main(self) -> None:
        """Send SIGKILL to the main process alone, as the OOM killer does; its children follow."""
        self.killed_at = time.monotonic()
        os.kill(self.pid, signal.SIGKILL)

    def ask_to_stop(self) -> None:
        """Send SIGTERM, after which the process finishes its work and ends."""
        if self.killed_at is None and self._process.poll() is None:
            self._process.terminate()

    def end(self, deadline: float) -> None:
        """Wait for the end of the process; at the deadline kill it and its children."""
        if self.killed_at is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, deadline - time.monotonic()))
        if self._process.returncode is None:
            # Not waited for until here, so its process id cannot belong to another process yet.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()

    def failure(self, why: str) -> ProcessFailed:
        """Return the error to raise, with the end of the log."""
        tail = "\n".join(self._text().splitlines()[-25:])
        return ProcessFailed(f"{self.name} {why}. The end of its log:\n{tail}")

    def _text(self) -> str:
        return self._log.read_text(errors="replace")


class Processes:
    """All processes of one run: ``with Processes(directory) as processes: processes.worker("one", ...)``."""

    def __init__(self, directory: Path) -> None:
        self.all: list[Process] = []
        self._directory = directory

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        deadline = time.monotonic()
        if error is None:
            deadline += STOP_TIMEOUT
            for process in self.all:
                process.ask_to_stop()
        for process in self.all:
            process.end(deadline)

    def worker(self, name: str, app: str, concurrency: int) -> Process:
        """Start a Celery worker, which is ready after some seconds."""
        arguments = ["celery", "-A", app, "worker", "-n", f"{name}@%h", "-c", str(concurrency), "-l", "INFO"]
        return self._add(Process(name, arguments, " ready.", self._directory))

    def web(self, name: str, app: str) -> tuple[Process, str]:
        """Start a web server; return its process and its address."""
        # Listen before the server starts, so that no other program can take the port.
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
            arguments = ["uvicorn", app, "--fd", str(listener.fileno()), "--no-access-log", "--lifespan", "on"]
            process = Process(name, arguments, "startup complete", self._directory, listener)
            return self._add(process), f"http://127.0.0.1:{listener.getsockname()[1]}"

    def wait_ready(self, *processes: Process) -> None:
        """Wait until all these processes are up."""
        if not self.until(lambda: all(process.ready for process in processes), START_TIMEOUT):
            late = next(process for process in processes if not process.ready)
            raise late.failure(f"did not come up within {START_TIMEOUT:g} s")

    def until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait until the condition holds (True) or the timeout is over (False); raise if a process ends by itself."""
        deadline = time.monotonic() + timeout
        while not (holds := condition()) and time.monotonic() < deadline:
            self.check()
            time.sleep(LOOK_EVERY)
        return holds

    def check(self) -> None:
        """Raise `ProcessFailed` if a process ended by itself."""
        for process in self.all:
            process.check()

    def _add(self, process: Process) -> Process:
        self.all.append(process)
        return process
