"""Stand-ins for the Docker containers of pytest-celery, by processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_celery import CeleryWorkerContainer, RedisContainer

from celery_throttle.embedded import EmbeddedServer, bound_to_parent
from tests.support.waiting import until

_READY_TIMEOUT = 60.0


class Process:
    """A process, as Docker would show it."""

    attrs: dict[str, Any] = {"NetworkSettings": {"Networks": {}, "Ports": {}}}  # noqa: RUF012 - as Docker has it

    def reload(self) -> None:
        """Everything here is asked anew each time."""


class ServerProcess(Process):
    """A Redis or Valkey."""

    def __init__(self, name: str, server: EmbeddedServer) -> None:
        self.name, self.server = name, server
        self.id = uuid.uuid4().hex

    @property
    def status(self) -> str:
        return "running" if self.server.running else "exited"

    def logs(self) -> bytes:
        return self.server.log.encode()

    def kill(self, signal: object = None) -> None:  # noqa: ARG002 - Docker's signature; a crash is what is wanted
        self.server.kill()

    def restart(self, timeout: float) -> None:  # noqa: ARG002 - Docker's signature
        self.server.restart()


class WorkerProcess(Process):
    """A worker and its pool: SIGKILL ends both, other signals go to the worker."""

    def __init__(self, host: str, command: Sequence[str], directory: Path, env: Mapping[str, str]) -> None:
        self.id = self.name = host
        self._command, self._directory, self._env = list(command), directory, dict(env)
        self._log = directory / "worker.log"
        self._process = self._start()
        #: How long the log was when the process started.
        self.before = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> str:
        return "running" if self._process.poll() is None else "exited"

    def logs(self) -> bytes:
        return self._log.read_bytes()

    def kill(self, number: str | int | None = None) -> None:
        """Send a signal, by name or number; SIGKILL by default."""
        number = signal.SIGKILL if number is None else number
        wanted = signal.Signals[number] if isinstance(number, str) else signal.Signals(number)
        with suppress(ProcessLookupError):
            if wanted is not signal.SIGKILL:
                os.kill(self.pid, wanted)
                return
            os.killpg(self.pid, wanted)
        self._process.wait()

    def restart(self, timeout: float) -> None:
        """End it warmly, within so many seconds, and start it again."""
        self._process.terminate()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
        self.before = len(self.logs())
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                bound_to_parent(self._command),
                cwd=self._directory,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


class LocalRedis(RedisContainer):
    """The broker or the backend: on 127.0.0.1, for the test and for the workers alike."""

    @property
    def url(self) -> str:
        return str(self._container.server.url)

    @property
    def host_url(self) -> str:
        return self.url

    @property
    def hostname(self) -> str:
        return "127.0.0.1"

    @property
    def port(self) -> int:
        return int(self._container.server.port)


class LocalWorker(CeleryWorkerContainer):
    """A worker with the tasks of `tests.smoke.tasks`."""

    @classmethod
    def tasks_modules(cls) -> set[ModuleType]:
        """The modules that the workers import; pytest-celery pings with its own."""
        from tests.smoke import tasks  # noqa: PLC0415 - only where there is a worker to run it

        return {tasks, *super().tasks_modules()}

    def kill(self, signal: str | int | None = None) -> None:
        self._container.kill(signal)

    def _wait_ready(self, timeout: float = _READY_TIMEOUT) -> bool:
        def ready() -> bool:
            assert self.status == "running", self.logs()[-4000:]
            return self.ready_prompt in self.logs()[self._container.before :]

        return until(ready, timeout=timeout, describe=lambda: self.logs()[-4000:])
