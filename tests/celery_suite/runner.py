"""Several runs, some at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.celery_suite.job import Job, Run
from tests.celery_suite.outcomes import Outcome

__all__ = ["Done", "Runner"]


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a run."""

    outcomes: dict[str, Outcome]
    parked: int
    seconds: float
    problem: str | None
    log: str


class Runner:
    """Has so many runs go on at once, each in a directory of its own."""

    def __init__(self, source: Path, directory: Path, at_once: int) -> None:
        self._source, self._directory, self._at_once = source, directory, at_once
        self._started = 0

    def run(self, runs: Iterable[Run], patience: float, say: Callable[[Run, Done], None]) -> dict[Run, Done]:
        """Return the result of each; in all cases, none is left.

        Args:
            runs: all of them.
            patience: seconds that one may take.
            say: called as each ends.
        """
        waiting, under_way, done = list(runs), list[Job](), dict[Run, Done]()
        try:
            while waiting or under_way:
                while waiting and len(under_way) < self._at_once:
                    under_way.append(self._start(waiting.pop(0)))
                for job in [each for each in under_way if each.ended or each.seconds > patience]:
                    done[job.run] = _done(job)
                    under_way.remove(job)
                    say(job.run, done[job.run])
                time.sleep(0.1)
        finally:
            for job in under_way:
                job.end()
        return done

    def _start(self, run: Run) -> Job:
        self._started += 1
        directory = self._directory / f"run{self._started}"
        directory.mkdir()
        return Job(run, directory, self._source)


def _done(job: Job) -> Done:
    problem, seconds = job.problem(), job.seconds
    job.end()
    return Done(job.outcomes(), job.parked(), seconds, problem, job.log)
