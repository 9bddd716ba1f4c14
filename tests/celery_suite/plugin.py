"""In the process that runs Celery's tests: throttle their tasks, start their worker, write down each outcome."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery.contrib.testing import worker as testing
from celery.utils.nodenames import anon_nodename

from celery_throttle.embedded import bound_to_parent
from tests.celery_suite.every_task import (
    CONFIGURATION,
    OWN_PROCESS,
    REPORTS,
    SLOTS,
    check_all_throttled,
    throttle_every_task,
)

#: Seconds a test may take, with its fixtures; one wait of its own is 60 s at most.
TIMEOUT = 120
START_TIMEOUT = 30.0
STOP_TIMEOUT = 15.0

_in_process = testing.start_worker


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Before any of the tests' modules is imported."""
    throttle_every_task()
    testing.start_worker = _start_worker  # type: ignore[assignment]  # as much of it as the tests use


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Some have a time limit of their own, of five minutes."""
    for item in items:
        item.add_marker(pytest.mark.timeout(TIMEOUT), append=False)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One line for each stage of a test, and for each of its subtests; written at once."""
    wrong = report.failed or hasattr(report, "wasxfail")
    said = {"test": report.nodeid, "outcome": report.outcome, "xfail": hasattr(report, "wasxfail")}
    said["text"] = str(report.longrepr) if wrong else ""
    with REPORTS.open("a") as reports:
        reports.write(json.dumps(said) + "\n")


@contextmanager
def _start_worker(app: Any, **how: Any) -> Iterator[Any]:
    check_all_throttled(app)
    start = _in_a_process if os.environ[OWN_PROCESS] else _in_process
    with start(app, **how, concurrency=int(os.environ[SLOTS])) as worker:
        yield worker


@contextmanager
def _in_a_process(app: Any, *, pool: str, concurrency: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a worker that is configured as this app, and called as the tests expect it."""
    CONFIGURATION.write_text(json.dumps(app.conf.table(censored=False), default=list))
    command = [sys.executable, "-m", "celery", "-A", "tests.celery_suite.worker", "worker", "-n", anon_nodename()]
    command += ["-P", pool, "-c", str(concurrency), "-l", "INFO", "--without-mingle", "--without-gossip"]
    with Path("worker.log").open("wb") as log:
        process = subprocess.Popen(
            bound_to_parent(command), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        _await(app, process)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(app: Any, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while not app.control.ping([anon_nodename()], timeout=0.5):
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError("The worker did not start: see worker.log")
