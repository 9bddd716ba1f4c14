"""Real ``celery worker`` processes for a test, and their end in all cases."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from kombu import pools

from celery_throttle.embedded import bound_to_parent
from tests.support.journal import VARIABLE as JOURNAL
from tests.support.journal import Journal
from tests.support.nursery import Forked, Nursery
from tests.support.waiting import HANGS_AFTER, until

ROOT = Path(__file__).resolve().parents[2]
BASIC = "tests.support.apps.basic"

LOG_TAIL = 60

#: A lease that no test waits for: a worker that stalls does not lose it, and no permit comes back by its end.
LONG_LEASE = 600

# Each costs a second or more at start and changes nothing about the gate; `quick=False` leaves them on.
QUICK = ("--without-mingle", "--without-gossip")

# Apps that import our package first thing, and those of them that do not.
_APPS = "tests.support.apps."
_LATE = frozenset({f"{_APPS}every"})

# The choices that Celery makes at its import: by the name of the pool, and by these variables.
_PATCHING_POOLS = ("gevent", "eventlet")
_READ_AT_IMPORT = ("C_FORCE_ROOT", "CELERY_", "PYTHON")

# As `python -m celery`, but with the repository at the END of the path: an installed wheel comes before it.
_CELERY = "import sys; sys.path.append(sys.argv.pop(1)); from celery.__main__ import main; main()"


class Worker:
    """One worker process and its pool, in a session of its own."""

    def __init__(self, name: str, process: subprocess.Popen[bytes] | Forked, log: Path, journal: Journal) -> None:
        self.name = name
        self.process = process
        self.journal = journal
        self._log = log

    def __repr__(self) -> str:
        return f"<Worker {self.name} pid={self.pid} {'running' if self.running else 'ended'}>"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def children(self) -> list[int]:
        """The pids of its direct children: the pool's processes (and an embedded beat, with ``-B``)."""
        return children_of(self.pid)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def tail(self, lines: int = LOG_TAIL) -> str:
        return "\n".join(self.log().splitlines()[-lines:])

    def wait_ready(self) -> Worker:
        self.wait_for_log(rf"{re.escape(self.name)}@\S+ ready\.")
        return self

    def wait_for_log(self, pattern: str, *, times: int = 1) -> list[str]:
        """Wait until the log has the pattern so many times; return the matches. Fails early if the worker ends."""

        def found() -> list[str]:
            ended = not self.running  # asked first, so that its last output is read
            matches = [match.group() for match in re.finditer(pattern, self.log(), re.MULTILINE)]
            if ended and len(matches) < times:
                message = f"{self!r} ended with status {self.process.returncode}, no {pattern!r} in its log:\n"
                raise AssertionError(message + self.tail())
            return matches if len(matches) >= times else []

        return until(found, describe=lambda: f"No {pattern!r} in the log of {self!r}:\n{self.tail()}")

    def term(self) -> None:
        """Ask for a warm shutdown; ``wait()`` for its end."""
        self._signal(signal.SIGTERM)

    def quit(self) -> None:
        """Ask for a cold shutdown (SIGQUIT)."""
        self._signal(signal.SIGQUIT)

    def cry(self) -> None:
        """Have it write to its log where each of its threads is (SIGUSR1)."""
        self._signal(signal.SIGUSR1)

    def freeze(self) -> None:
        """Stop the main process (SIGSTOP); its children go on."""
        self._signal(signal.SIGSTOP)

    def most_files(self) -> int:
        """How many file descriptors the main process may have."""
        return resource.prlimit(self.pid, resource.RLIMIT_NOFILE)[0]

    def next_file(self) -> int:
        """The number of the next file descriptor that the main process opens."""
        there = {int(each.name) for each in Path(f"/proc/{self.pid}/fd").iterdir()}
        return next(number for number in itertools.count() if number not in there)

    def allow_files(self, most: int, *, children: bool = False) -> None:
        """Let the main process have file descriptors below this number only; children begin with as many as it has."""
        for pid in (self.pid, *(self.children() if children else ())):
            with suppress(ProcessLookupError):
                _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, hard))

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL the main process, as the OOM killer would; prefork children follow by their parent-death signal."""
        children = self.children()
        self.journal.killed([self.pid, *children])
        self.process.kill()
        self.process.wait()
        until(lambda: not any(alive(child) for child in children), describe="A pool child outlived its worker.")

    def kill_child(self, pid: int | None = None) -> int:
        """SIGKILL one child of the pool, by default the first; return its pid."""
        victim = self.children()[0] if pid is None else pid
        assert victim in self.children(), f"{victim} is no child of {self!r}"
        self.journal.killed([victim])
        os.kill(victim, signal.SIGKILL)
        return victim

    def wait(self, timeout: float = HANGS_AFTER) -> int:
        """Wait until the main process has ended; return its status."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.cry()
            with suppress(AssertionError):
                self.wait_for_log(r"^MainThread$")
            raise AssertionError(f"{self!r} did not end within {timeout:g} s:\n{self.tail(3 * LOG_TAIL)}") from None

    def end(self) -> None:
        """End all that is left of it: the session that it leads, by number, and no other process."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        assert self.running, f"{self!r} is no longer there:\n{self.tail()}"
        self.process.send_signal(number)


class Workers:
    """Starts workers on one Redis and ends all of them.

    ``conf`` is Celery configuration, for the workers and for ``app()`` in the test's own process; change it before. It
    has a long lease: a test that waits for the end of one sets its own.
    With a nursery they are forked from it, as far as it has their imports.
    """

    def __init__(self, url: str, journal: Journal, directory: Path, nursery: Nursery | None = None) -> None:
        self.broker = url
        self.backend = url.removesuffix("/0") + "/1"
        self.journal = journal
        self.conf: dict[str, Any] = {"throttle_lease": LONG_LEASE}
        self.env: dict[str, str] = {}
        self.started: list[Worker] = []
        self._directory = directory
        self._nursery = nursery
        self._apps: list[ModuleType] = []

    def start(
        self,
        app: str = BASIC,
        *,
        pool: str = "prefork",
        concurrency: int = 2,
        queues: str = "celery",
        conf: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        quick: bool = True,
        wait: bool = True,
    ) -> Worker:
        """Start one worker and wait until it is ready; with ``wait=False`` call its ``wait_ready()`` later."""
        name = f"w{len(self.started) + 1}"
        arguments = ["-A", app, "worker", "-n", f"{name}@%h", "-Q", queues, "-P", pool, "-c", str(concurrency)]
        arguments += ["-l", "INFO", *(QUICK if quick else ()), *options]
        own = self.environment(conf) | dict(env or {})
        # Celery's pool makes a directory there, and one that is killed leaves it behind.
        environment = os.environ | {"TMPDIR": str(self._directory)} | own
        log = self._directory / f"{name}.log"
        process: subprocess.Popen[bytes] | Forked
        with log.open("wb") as output:
            if self._nursery and quick and _can_be_forked(app, pool, own):
                process = self._nursery.start(arguments, self._directory, environment, output)
            else:
                process = subprocess.Popen(
                    bound_to_parent([sys.executable, "-c", _CELERY, str(ROOT), *arguments]),
                    cwd=self._directory,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        worker = Worker(name, process, log, self.journal)
        self.started.append(worker)
        return worker.wait_ready() if wait else worker

    def start_many(self, count: int, app: str = BASIC, **how: Any) -> list[Worker]:
        """Start several alike at once; ``how`` as for ``start()``."""
        workers = [self.start(app, **how, wait=False) for _ in range(count)]
        return [worker.wait_ready() for worker in workers]

    def start_app(self, app: str = BASIC, *, count: int = 1, **how: Any) -> Any:
        """Start workers, and return their app as `app` does."""
        self.start_many(count, app, **how)
        return self.app(app)

    def wait_discarded(self, *results: Any) -> None:
        """Wait until these are reported not to run: revoked, or expired.

        The state REVOKED of a result proves less: any worker of Celery 5.7 writes that when it gets the revoke.
        """

        def said() -> bool:
            logs = "\n".join(worker.log() for worker in self.started)
            return all(re.search(rf"Discarding revoked.*\[{result.id}\]", logs) for result in results)

        until(said, describe=lambda: "\n".join(worker.tail() for worker in self.started))

    def app(self, name: str = BASIC) -> Any:
        """A fresh import of the app's module for the test's own process, configured as the workers are."""
        with patch.dict(os.environ, self.environment()):
            sys.modules.pop(name, None)
            module = importlib.import_module(name)
        self._apps.append(module)
        return module

    def environment(self, conf: Mapping[str, Any] | None = None) -> dict[str, str]:
        """The variables that app modules read."""
        return {
            "BROKER_URL": self.broker,
            "RESULT_BACKEND": self.backend,
            "TEST_CONF": json.dumps(self.conf | dict(conf or {})),
            JOURNAL: str(self.journal.path),
            "PYTHONUNBUFFERED": "1",
            **self.env,
        }

    def end(self) -> None:
        for worker in self.started:
            worker.end()
        for module in self._apps:
            close(module.app)
            sys.modules.pop(module.__name__, None)


def _can_be_forked(app: str, pool: str, variables: Mapping[str, str]) -> bool:
    """Return whether a nursery's process has the state that the worker would have by then."""
    same = app.startswith(_APPS) and app not in _LATE and pool not in _PATCHING_POOLS
    return same and not any(each != "PYTHONUNBUFFERED" and each.startswith(_READ_AT_IMPORT) for each in variables)


def close(app: Any) -> None:
    """Close an app and the connections that ``Celery.close()`` leaves open: to the broker and to the backend."""
    pools.reset()
    backend = app.backend
    backend.retry_policy = {"max_retries": 0}  # for results that are collected when their server is gone
    consumer = getattr(backend, "result_consumer", None)
    if consumer is not None:
        consumer.stop()
    if hasattr(backend, "client"):
        backend.client.connection_pool.disconnect()
    app.close()


def children_of(pid: int) -> list[int]:
    """Return the pids of the direct children of a process, by the kernel's lists (Linux)."""
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found.update(int(child) for child in path.read_text().split())
    return sorted(found)


def alive(pid: int) -> bool:
    """Whether the process is there and not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}
