"""The actual runs, with time and place: written by tasks in worker processes, read by the test.

A file, not a Redis list: tests stop, freeze and empty their Redis. One line is one ``write`` to a file opened for
appending, so lines of several processes do not mix. Times are CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import json
import math
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from tests.support.waiting import until

VARIABLE = "TEST_JOURNAL"


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a task's body. ``stopped`` is None while it runs."""

    id: str
    task_id: str
    task: str
    label: str
    pid: int
    worker: str
    attempt: int
    redelivered: bool
    started: float
    stopped: float | None = None
    outcome: str = ""  # "returned", "raised" or "killed"

    @property
    def finished(self) -> bool:
        return self.outcome in {"returned", "raised"}


class Journal:
    """The file, and the questions that tests ask it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # -- written by tasks ---------------------------------------------------------------------------------------------

    @classmethod
    def from_environment(cls) -> Journal:
        return cls(Path(os.environ[VARIABLE]))

    @classmethod
    def note(cls, event: str, **fields: object) -> None:
        """Write down the event of a receiver; nothing in a test that has no journal: another left its app imported."""
        if VARIABLE in os.environ:
            cls.from_environment().write(event, **fields)

    def write(self, event: str, **fields: object) -> None:
        line = json.dumps({"event": event, "at": time.monotonic(), **fields}) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    @contextmanager
    def run(self, request: Any, label: str) -> Iterator[None]:
        """Record one run of a bound task: ``with journal.run(self.request, label): ...``."""
        run = uuid.uuid4().hex
        self.write(
            "start",
            run=run,
            task_id=request.id,
            task=request.task,
            label=label,
            pid=os.getpid(),
            worker=request.hostname,
            attempt=request.retries,
            redelivered=bool((request.delivery_info or {}).get("redelivered")),
        )
        outcome = "raised"
        try:
            yield
            outcome = "returned"
        finally:
            self.write("stop", run=run, outcome=outcome)

    def is_let_go(self, label: str) -> bool:
        return any(self.path.with_name(f"{self.path.name}.{each}").exists() for each in (label, "*"))

    def wait_let_go(self, label: str, most: float = math.inf) -> None:
        """Wait until the test lets this label go, or for so many seconds; the test ends its workers in all cases."""
        deadline = time.monotonic() + most
        while not self.is_let_go(label) and time.monotonic() < deadline:
            time.sleep(0.01)

    # -- read by the test ---------------------------------------------------------------------------------------------

    def killed(self, pids: Iterable[int]) -> None:
        """Note that these processes are about to be killed: their runs end now, and cannot note it."""
        self.write("killed", pids=list(pids))

    def let_go(self, *labels: str) -> None:
        """End the tasks that hold under these labels, also later ones; or let them raise `RateLimited` no more."""
        for label in labels:
            self.path.with_name(f"{self.path.name}.{label}").touch()

    def let_all_go(self) -> None:
        self.let_go("*")

    def events(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        # Whole lines only: a reader can meet one that is being written.
        lines, _, _ = self.path.read_text().rpartition("\n")
        return sorted((json.loads(line) for line in lines.splitlines()), key=lambda event: float(event["at"]))

    def runs(self, label: str = "", *, task: str = "") -> list[Run]:
        """All runs by time of start, or those of a label; ``task`` is the end of the task's name (``"basic.work"``)."""
        runs: dict[str, Run] = {}
        for event in self.events():
            kind, at = event.pop("event"), float(event.pop("at"))
            if kind == "start":
                run = Run(id=event.pop("run"), started=at, **event)
                runs[run.id] = run
            elif kind == "stop":
                runs[event["run"]] = replace(runs[event["run"]], stopped=at, outcome=event["outcome"])
            elif kind == "killed":
                killed = [run for run in runs.values() if run.pid in event["pids"] and run.stopped is None]
                runs |= {run.id: replace(run, stopped=at, outcome="killed") for run in killed}
        return [run for run in runs.values() if label in ("", run.label) and run.task.endswith(task)]

    def finished(self, label: str = "", *, task: str = "") -> list[Run]:
        return [run for run in self.runs(label, task=task) if run.finished]

    def running(self, label: str = "", *, task: str = "") -> list[Run]:
        return [run for run in self.runs(label, task=task) if run.stopped is None]

    def order(self, *, task: str = "") -> list[str]:
        """The labels in the order of their starts."""
        return [run.label for run in self.runs(task=task)]

    def max_running(self, label: str = "", *, task: str = "") -> int:
        """The most that ran at one time."""
        return peak(self.runs(label, task=task))

    def wait_finished(self, count: int, label: str = "", *, task: str = "") -> list[Run]:
        return self._wait(lambda: self.finished(label, task=task), count)

    def wait_running(self, count: int, label: str = "", *, task: str = "") -> list[Run]:
        return self._wait(lambda: self.running(label, task=task), count)

    def wait_begun(self, result: Any) -> Any:
        """Wait until this task runs; return its result."""
        self._wait(lambda: [run for run in self.running() if run.task_id == result.id], 1)
        return result

    def wait_started(self, count: int, label: str = "", *, task: str = "") -> list[Run]:
        return self._wait(lambda: self.runs(label, task=task), count)

    def _wait(self, find: Callable[[], list[Run]], count: int) -> list[Run]:
        until(lambda: len(find()) >= count, describe=lambda: f"Wanted {count}: {self.summary()}")
        return find()

    def summary(self) -> str:
        runs = self.runs()
        finished = sum(run.finished for run in runs)
        running = [run.label for run in runs if run.stopped is None]
        return f"{len(runs)} started, {finished} finished, running: {running[:20]}"


def peak(runs: Iterable[Run]) -> int:
    """Return the most of these runs that went on at one time; one that ends as another starts does not count twice."""
    changes = []
    for run in runs:
        changes += [(run.started, 1)] if run.stopped is None else [(run.started, 1), (run.stopped, -1)]
    return max(accumulate((change for _, change in sorted(changes)), initial=0))
