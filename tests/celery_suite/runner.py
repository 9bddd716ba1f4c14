"""Several runs of Celery's own tests, some at once."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path

from tests.celery_suite.job import Done, Job, Run

__all__ = ["Runner", "fetch"]


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
                    done[job.run] = job.result()
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


def fetch(directory: Path) -> Path:
    """Download the source distribution of the installed Celery, and return the folder ``t`` of it.

    Nothing else is taken: the ``celery`` beside it would be imported instead of the one that is installed.
    """
    release = version("celery")
    wanted = ["--no-binary", "celery", "--no-deps", "--dest", str(directory), f"celery=={release}"]
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *wanted], check=True)
    with tarfile.open(directory / f"celery-{release}.tar.gz") as source:
        top = f"celery-{release}/"
        members = [each for each in source.getmembers() if each.name.startswith(f"{top}t/")]
        for each in members:
            each.name = each.name.removeprefix(top)
        source.extractall(directory, members=members, filter="data")
    return directory / "t"
