"""One run of Celery's tests: a process, with a Redis and a directory of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis

from celery_throttle.embedded import EmbeddedServer, bound_to_parent
from tests.celery_suite.every_task import LIMIT, LOG, OWN_PROCESS, REPORTS, SLOTS
from tests.celery_suite.scenarios import Kind, Scenario

__all__ = ["Done", "Job", "Outcome", "Run", "outcomes"]

ROOT = Path(__file__).resolve().parents[2]

#: Only the packages that the tests need, for any installed ones beside it.
_PYTEST = ("-m", "pytest", "-q", "--tb=native", "-p", "pytest_timeout", "-p", "no:cacheprovider")
_PLUGINS = ("-p", "celery.contrib.pytest", "-p", "tests.celery_suite.plugin")
_INI = "[pytest]\npython_classes = test_*\nmarkers =\n    flaky: what Celery repeats up to five times; here it is not\n"
#: All passed; some failed. Anything else is no run.
_ENDED = (0, 1)
#: The outcomes of a test: later ones outweigh earlier ones.
_ORDER = ("passed", "skipped", "xfailed", "xpassed", "failed")


@dataclass(frozen=True)
class Run:
    """A job: some tests, or parts of their names, on a worker, throttled or not."""

    scenario: Scenario
    kind: Kind
    tests: tuple[str, ...]
    chosen: str = ""

    @property
    def name(self) -> str:
        """As it is printed."""
        return f"{self.scenario.name}, {self.kind.name}"


@dataclass
class Outcome:
    """``passed``, ``skipped``, ``xfailed``, ``xpassed`` or ``failed``, of all stages and subtests; pytest's text."""

    what: str = "passed"
    text: str = ""

    def add(self, report: dict[str, Any]) -> None:
        """Take one more stage or subtest into account."""
        what = str(report["outcome"])
        if report["xfail"]:
            what = "xfailed" if what == "skipped" else "xpassed"
        if _ORDER.index(what) > _ORDER.index(self.what):
            self.what = what
        if what == "failed" and not self.text:
            self.text = report["text"]


def outcomes(reports: Path) -> dict[str, Outcome]:
    """Return the outcome of each test, by its name: file, class and parameters."""
    found: dict[str, Outcome] = {}
    for line in reports.read_text().splitlines() if reports.exists() else ():
        report = json.loads(line)
        found.setdefault(report["test"].removeprefix("t/integration/"), Outcome()).add(report)
    return found


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a run."""

    outcomes: dict[str, Outcome]
    parked: int
    seconds: float
    problem: str | None
    log: str


class Job:
    """A run under way, from its start to ``end()``."""

    def __init__(self, run: Run, directory: Path, source: Path) -> None:
        self.run = run
        self._directory = directory
        self._server = EmbeddedServer()
        self._began = time.monotonic()
        self._process = self._start(source)

    @property
    def seconds(self) -> float:
        """Since its start."""
        return time.monotonic() - self._began

    @property
    def ended(self) -> bool:
        """Whether pytest has ended by itself."""
        return self._process.poll() is not None

    def end(self) -> None:
        """End all that is left of it: the session that it leads, its server."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._server.stop()

    def result(self) -> Done:
        """End it; return its result."""
        problem, seconds = self._problem(), self.seconds
        self.end()
        log = self._directory / LOG
        parked = sum(line.endswith(" parked") for line in log.read_text().splitlines()) if log.exists() else 0
        printed = (self._directory / "pytest.log").read_text(errors="replace")
        return Done(outcomes(self._directory / REPORTS), parked, seconds, problem, printed[-3000:])

    def _problem(self) -> str | None:
        """Why this was no run; None if it was one. To be asked before its end."""
        if not self.ended:
            return f"has not ended after {self.seconds:.0f} s"
        if self._process.returncode not in _ENDED:
            return f"ended with status {self._process.returncode}"
        with Redis.from_url(self._server.url) as redis:
            throttled = any(redis.scan_iter("{throttle}*"))
        if throttled != (self.run.kind.limit is not None):
            return "asked for permits though nothing was throttled" if throttled else "never asked for a permit"
        return None

    def _start(self, source: Path) -> subprocess.Popen[bytes]:
        self._server.start()
        shutil.copytree(source, self._directory / "t")
        (self._directory / "pytest.ini").write_text(_INI)
        # Where Celery's conftest looks for settings of the app.
        settings = {"task_acks_late": self.run.scenario.late}
        (self._directory / "integration-tests-config.json").write_text(json.dumps(settings))
        chosen = ["-k", self.run.chosen] if self.run.chosen else []
        tests = [f"t/integration/{test}" for test in self.run.tests]
        with (self._directory / "pytest.log").open("wb") as log:
            return subprocess.Popen(
                bound_to_parent([sys.executable, *_PYTEST, *_PLUGINS, *chosen, *tests]),
                cwd=self._directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the runner, which ends it
            )

    def _environment(self) -> dict[str, str]:
        theirs = ("CELERY_", "THROTTLE_", "TEST_", "PYTEST_", "REDIS_", "WORKER_")
        scenario, limit = self.run.scenario, self.run.kind.limit
        return {name: value for name, value in os.environ.items() if not name.startswith(theirs)} | {
            "TEST_BROKER": self._server.url,
            "TEST_BACKEND": self._server.url,
            "REDIS_HOST": "127.0.0.1",
            "REDIS_PORT": str(self._server.port),
            "WORKER_LOGLEVEL": "INFO",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self._directory),
            LIMIT: "" if limit is None else str(limit),
            OWN_PROCESS: "1" if scenario.own_process else "",
            SLOTS: str(scenario.slots),
        }
