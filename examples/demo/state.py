"""The present state, read from the store and from the tasks' journal."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from celery_throttle.core.keys import Keys
from examples.demo.journal import Reader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis import Redis

    from examples.demo.journal import Run
    from examples.processes import Processes


@dataclass(frozen=True)
class WorkerState:
    """One worker; ``running`` has (frame, seconds since the start) of its running tasks."""

    name: str
    pid: int
    word: str
    running: tuple[tuple[int, float], ...]
    done: int


@dataclass(frozen=True)
class State:
    """One state. ``limit``, ``held`` and ``parked`` are from the store; ``held`` includes the ``orphaned`` permits.

    ``waiting`` has the frames whose tasks have not started, in the order of publishing; ``killed`` those that ran on
    the killed worker.
    """

    elapsed: float
    tasks: int
    limit: int
    held: int
    orphaned: int
    parked: int
    waiting: tuple[int, ...]
    killed: tuple[int, ...]
    done: int
    wait_p50: float
    wait_max: float
    workers: tuple[WorkerState, ...]
    events: tuple[tuple[float, str], ...]


@dataclass
class Watch:
    """Reads the state. ``published`` has the time at which the task of each frame was sent."""

    client: Redis
    prefix: str
    limit_name: str
    workers: Processes
    tasks: int
    published: dict[int, float] = field(default_factory=dict)
    events: list[tuple[float, str]] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    #: Permits of the killed worker whose leases have not ended.
    orphaned: int = 0
    _begun: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._journal = Reader(self.client, self.prefix)
        self._limits, self._used, self._waiting, self._leases = (
            Keys(self.prefix).key(name) for name in ("limits", "used", "waiting", "leases")
        )

    def note(self, text: str) -> None:
        """Add an event."""
        self.events.append((time.monotonic() - self._begun, text))

    def look(self) -> State:
        """Read the state."""
        limit, held, parked = self._store()
        self.read_journal()
        now = time.monotonic()
        waits = self._waits()
        return State(
            elapsed=now - self._begun,
            tasks=self.tasks,
            limit=limit,
            held=held,
            orphaned=self.orphaned,
            parked=parked,
            waiting=tuple(self._not_started()),
            killed=tuple(self._killed()),
            done=self.done,
            wait_p50=median(waits) if waits else 0.0,
            wait_max=max(waits, default=0.0),
            workers=tuple(self._worker_states(now)),
            events=tuple(self.events),
        )

    def read_journal(self) -> None:
        """Read the new records of the tasks."""
        self.runs = self._journal.read()

    @property
    def done(self) -> int:
        """Number of finished tasks."""
        return len({run.frame for run in self.runs if run.stopped is not None})

    def running_on(self, worker: str) -> list[Run]:
        """Return the runs on a worker that have not ended."""
        return [run for run in self.runs if run.worker == worker and run.stopped is None]

    def leases_of(self, task_ids: list[str]) -> list[float | None]:
        """Return the ends of the leases of these tasks, by the store's clock; None for a task without a permit."""
        return self.client.zmscore(self._leases, task_ids) if task_ids else []

    def _store(self) -> tuple[int, int, int]:
        pipeline = self.client.pipeline(transaction=False)
        pipeline.hget(self._limits, self.limit_name)
        pipeline.hget(self._used, self.limit_name)
        pipeline.hget(self._waiting, self.limit_name)
        limit, held, parked = (int(value or 0) for value in pipeline.execute())
        return limit, held, parked

    def _not_started(self) -> Iterable[int]:
        started = {run.frame for run in self.runs}
        return (frame for frame in self.published if frame not in started)

    def _killed(self) -> Iterable[int]:
        killed = [worker.name for worker in self.workers.all if worker.killed_at is not None]
        return (run.frame for name in killed for run in self.running_on(name))

    def _waits(self) -> list[float]:
        first = {run.frame: run.started for run in reversed(self.runs)}
        return [started - self.published[frame] for frame, started in first.items()]

    def _worker_states(self, now: float) -> Iterable[WorkerState]:
        for worker in self.workers.all:
            if worker.killed_at is not None:
                word, running = "killed", []
            else:
                word, running = "up" if worker.ready else "starting", self.running_on(worker.name)
            done = sum(run.worker == worker.name and run.stopped is not None for run in self.runs)
            ages = tuple((run.frame, now - run.started) for run in running)
            yield WorkerState(worker.name, worker.pid, word, ages, done)
