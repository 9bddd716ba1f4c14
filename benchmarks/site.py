"""A site to measure on: servers, real workers and a publisher, all ended with the ``with`` block."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from celery import Celery
from redis import Redis

from benchmarks.app import CONFIGURATION, JOURNAL, READY
from celery_throttle.core.keys import Keys
from celery_throttle.embedded import EmbeddedServer, bound_to_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["THROTTLED", "UNTHROTTLED", "Bench", "BenchmarkError", "Run", "Site", "Worker", "peak", "until"]

ROOT = Path(__file__).resolve().parents[1]

#: The queue of the workers with the library, and the queue of the worker without it.
THROTTLED, UNTHROTTLED = "throttled", "unthrottled"

_READY_TIMEOUT = 60.0


class BenchmarkError(Exception):
    """The benchmark cannot measure: a worker died, or tasks did not end."""


@dataclass
class Bench:
    """The size of the loads, and the problems found while measuring."""

    rounds: int
    quick: bool
    problems: list[str] = field(default_factory=list)

    def problem(self, what: str) -> None:
        """Record a problem, which makes the run fail even with good figures."""
        self.problems.append(what)
        print(f"PROBLEM: {what}", file=sys.stderr, flush=True)

    def show(self, what: str) -> None:
        """Show progress."""
        print(f"  {what}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a task's body, as the task recorded it."""

    number: int
    start: float
    end: float
    child: int
    worker: int


class Worker:
    """One worker process and its pool, in a session of its own."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name, self.process, self._log = name, process, log

    @property
    def pid(self) -> int:
        """The process id of the main process."""
        return self.process.pid

    def check(self) -> None:
        """Raise if the worker has ended."""
        if self.process.poll() is not None:
            log = "\n".join(self.log().splitlines()[-30:])
            raise BenchmarkError(f"worker {self.name} ended with status {self.process.returncode}:\n{log}")

    def log(self) -> str:
        """Return the log so far."""
        return self._log.read_text(errors="replace")

    def processor_seconds(self) -> float:
        """Return the processor time of the main process so far (Linux)."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """Kill the worker and its children, which are in a session of their own."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()


class Site:
    """The servers, workers and publisher of one load.

    Args:
        bench: gets the problems.
        own_store: whether the store has a server of its own; else broker and store share one, as most users have it.
        lease: ``throttle_lease``.
        failures_expected: the benchmark kills processes, so errors in the logs are no problem.
        store_url: the URL of an existing store.
        conf: further configuration of the workers.
    """

    def __init__(
        self,
        bench: Bench,
        *,
        own_store: bool = False,
        lease: float = 60.0,
        failures_expected: bool = False,
        store_url: str = "",
        conf: Mapping[str, Any] | None = None,
    ) -> None:
        self._store_url, self._more_conf = store_url, dict(conf or {})
        self._bench, self._own_store, self._lease = bench, own_store, lease
        self._failures_expected = failures_expected
        self._stack = ExitStack()
        self.keys = Keys("throttle")
        self.workers: list[Worker] = []

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def _open(self) -> None:
        self._directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="throttle-bench-")))
        server = self._stack.enter_context(EmbeddedServer())
        store = self._stack.enter_context(EmbeddedServer()) if self._own_store else server
        store_url = self._store_url or store.url
        self.broker = self._stack.enter_context(Redis.from_url(server.url))
        self.store = self._stack.enter_context(Redis.from_url(store_url))
        self._journal_url = server.url.removesuffix("/0") + "/2"
        self.journal: Any = self._stack.enter_context(Redis.from_url(self._journal_url))
        self._conf: dict[str, Any] = {
            "broker_url": server.url,
            "result_backend": server.url.removesuffix("/0") + "/1",
            "broker_connection_retry_on_startup": True,
            "throttle_url": store_url,
            "throttle_lease": self._lease,
            **self._more_conf,
        }
        self.publisher = Celery("publisher", broker=server.url, set_as_current=False)
        self._stack.callback(self.publisher.close)
        self._stack.callback(self.end_workers)

    # -- workers ------------------------------------------------------------------------------------------------------

    def start(self, count: int, processes: int, *, throttled: bool = True) -> list[Worker]:
        """Start equal workers on the queue of their kind, and wait until all consume."""
        workers = [self._start_one(processes, throttled=throttled) for _ in range(count)]
        self.workers += workers
        names = {worker.name for worker in workers}

        def ready() -> bool:
            for worker in workers:
                worker.check()
            return names <= {name.decode().partition("@")[0] for name in self.journal.lrange(READY, 0, -1)}

        until(ready, _READY_TIMEOUT, "workers did not get ready")
        return workers

    def _start_one(self, processes: int, *, throttled: bool) -> Worker:
        queue = THROTTLED if throttled else UNTHROTTLED
        name = f"{queue}{time.monotonic_ns()}"
        log = self._directory / f"{name}.log"
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.app", "worker", "-l", "WARNING"]
        command += ["-n", f"{name}@%h", "-Q", queue, "-c", str(processes)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                bound_to_parent(command),
                cwd=ROOT,  # `-m` finds this package there
                env=os.environ
                | {"TMPDIR": str(self._directory)}  # a killed pool leaves a directory there
                | {CONFIGURATION: json.dumps(self._conf | {"throttle_enabled": throttled}), JOURNAL: self._journal_url},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only the benchmark, which ends the workers
            )
        return Worker(name, process, log)

    def end_workers(self) -> None:
        """End all workers, and check their logs."""
        for worker in self.workers:
            worker.kill()
            self._inspect(worker)
        self.workers.clear()

    def _inspect(self, worker: Worker) -> None:
        pattern = (
            r"^.*celery_throttle: error.*$" if self._failures_expected else r"^.*(?: (?:ERROR|CRITICAL)/|lease_lost).*$"
        )
        log = worker.log()
        if found := re.search(pattern, log, re.MULTILINE):
            self._bench.problem(f"in a worker's log: {log[found.start() :][:800]}")

    # -- publishing ---------------------------------------------------------------------------------------------------

    def publish(self, task: str, rows: Iterable[Sequence[Any]], queue: str, *, ignore_result: bool = True) -> None:
        """Publish the task once for each row of arguments."""
        with self.publisher.producer_pool.acquire(block=True) as producer:
            for arguments in rows:
                self.publisher.send_task(
                    task, args=arguments, queue=queue, producer=producer, ignore_result=ignore_result
                )

    def messages_published(self) -> int:
        """Return the number of messages that the broker's queues got so far (one LPUSH of kombu each)."""
        statistics: dict[str, Any] = self.broker.info("commandstats")
        return int(statistics.get("cmdstat_lpush", {}).get("calls", 0))

    # -- runs ---------------------------------------------------------------------------------------------------------

    def count(self, load: str) -> int:
        """Return the number of entries that the journal has for this load."""
        return int(self.journal.llen(load))

    def runs(self, load: str) -> list[Run]:
        """Return the runs so far, by time of start."""
        entries = [Run(*json.loads(entry)) for entry in self.journal.lrange(load, 0, -1)]
        return sorted(entries, key=lambda run: run.start)

    def wait(self, load: str, count: int, timeout: float) -> list[Run]:
        """Return the runs once there are ``count`` of them."""

        def there() -> bool:
            for worker in self.workers:
                worker.check()
            return self.count(load) >= count

        until(there, timeout, lambda: f"{self.count(load)} of {count} runs of {load!r} within {timeout:g} s")
        return self.runs(load)

    def check_runs(self, load: str, runs: Sequence[Run], numbers: Iterable[int], limit: int | None = None) -> None:
        """Record lost tasks, tasks that ran twice, and more runs at once than allowed as problems."""
        ran, wanted = sorted(run.number for run in runs), sorted(numbers)
        if ran != wanted:
            self._bench.problem(f"{load}: {len(set(wanted) - set(ran))} lost, {len(ran) - len(set(ran))} ran twice")
        if limit is not None and (highest := peak(runs)) > limit:
            self._bench.problem(f"{load}: {highest} at once under a limit of {limit}")

    def empty(self) -> None:
        """Delete all data on all servers."""
        self.broker.flushall()
        self.store.flushall()


class Span(Protocol):
    """A time with a start and an end."""

    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...


def peak(runs: Iterable[Span]) -> int:
    """Return the highest number of overlapping runs; a run that ends as another starts does not overlap it."""
    changes = sorted(change for run in runs for change in ((run.start, 1), (run.end, -1)))
    highest = now = 0
    for _, change in changes:
        now += change
        highest = max(highest, now)
    return highest


def until(condition: Callable[[], bool], timeout: float, otherwise: str | Callable[[], str]) -> None:
    """Wait for a condition, with few checks, so that waiting does not disturb the measurement."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise BenchmarkError(otherwise if isinstance(otherwise, str) else otherwise())
        time.sleep(0.05)
