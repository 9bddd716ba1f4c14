"""The comparison of Celery's own tests, plain and throttled: on a suite like theirs, but with three tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.celery_suite import comparing
from tests.celery_suite.__main__ import compare
from tests.celery_suite.comparing import Known, report
from tests.celery_suite.job import ROOT, Done, Outcome, Run, outcomes
from tests.celery_suite.runner import Runner
from tests.celery_suite.scenarios import KINDS, PLAIN, Kind, Scenario
from tests.support.waiting import until
from tests.support.workers import alive, children_of

IN_PROCESS = Scenario(own_process=False, slots=4, late=False)
A_PROCESS = Scenario(own_process=True, slots=4, late=True)
LOW = KINDS[1]

CONFTEST = """
import json, os
import pytest
from celery.contrib.pytest import celery_app, celery_session_app, celery_session_worker
from t.integration.tasks import Own

@pytest.fixture(scope="session")
def celery_config(request):
    settings = json.loads((request.config.rootpath / "integration-tests-config.json").read_text())
    return {"broker_url": os.environ["TEST_BROKER"], "result_backend": os.environ["TEST_BACKEND"], **settings}

@pytest.fixture(scope="session")
def celery_includes():
    return {"t.integration.tasks"}

@pytest.fixture(scope="session")
def celery_class_tasks():
    return [Own]

@pytest.fixture(scope="session")
def celery_worker_pool():
    return "prefork"

@pytest.fixture(autouse=True)
def worker(celery_session_worker):
    return celery_session_worker
"""

TASKS = """
import time
from celery import Task, shared_task

class Own(Task):
    name = "own"

    def run(self):
        return self.acks_late, [each.__name__ for each in type(self).__mro__]

@shared_task
def nap():
    time.sleep(0.2)

@shared_task(bind=True)
def bases(self):
    return self.acks_late, [each.__name__ for each in type(self).__mro__]
"""

TESTS = """
from celery import group
from .tasks import Own, bases, nap

class test_tasks:
    def test_is_the_same(self):
        group(nap.si() for _ in range(8))().get(timeout=20)

    def test_differs(self, celery_session_app):
        found = [celery_session_app.tasks[task.name].delay().get(timeout=20) for task in (bases, Own)]
        assert [late for late, _ in found] == [celery_session_app.conf.task_acks_late] * 2
        assert not all("Throttled" in names for _, names in found)

    def test_fails_in_both(self):
        assert False
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A folder as Celery's ``t``."""
    folder = tmp_path / "t"
    (folder / "integration").mkdir(parents=True)
    for name, text in {"conftest": CONFTEST, "tasks": TASKS, "test_tasks": TESTS}.items():
        (folder / "integration" / f"{name}.py").write_text(text)
    for each in (folder, folder / "integration"):
        (each / "__init__.py").touch()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [IN_PROCESS, A_PROCESS], ids=["in-process", "a process"])
def test_differences_are_found_and_nothing_else(
    suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], scenario: Scenario
) -> None:
    """Tasks of both sorts are throttled, in either worker; some have to wait."""
    directory = tmp_path / "logs"
    directory.mkdir()
    runs = [Run(scenario, kind, ("test_tasks.py",)) for kind in (PLAIN, LOW)]
    assert compare(Runner(suite, directory, 2), runs, ()) == 1
    said = capsys.readouterr().out
    name = f"test_tasks.py::test_tasks::test_differs ({scenario.name}, limit 2)"
    assert f"DIFFERENT: {name}: passed plain, failed throttled\nNOT LISTED\n" in said
    assert "1 tests differ, 1 of them not listed; 0 listed ones do not; 0 did so once; 0 runs were none" in said


def test_nothing_is_left_after_ctrl_c(suite: Path, tmp_path: Path) -> None:
    """Neither servers nor workers nor files."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "tests.celery_suite", "--source", str(suite), "--only", "a process, 4 slots, late"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        logs = "celery-suite-*/run1/worker.log"
        until(lambda: any(" ready." in each.read_text() for each in temporary.glob(logs)), timeout=60)
        left = _below(process.pid)
        for _ in range(100):  # one from the terminal, one from tox, one of an impatient user
            process.send_signal(signal.SIGINT)
            time.sleep(0.001)
        assert process.wait(30) == 130
        until(lambda: not any(map(alive, left)))
        assert not list(temporary.iterdir())
    finally:
        process.kill()


def _below(pid: int) -> list[int]:
    return [each for child in children_of(pid) for each in (child, *_below(child))]


def test_stages_and_subtests_are_one_outcome(tmp_path: Path) -> None:
    """The worse outcome outweighs the better, and results of a run that was cut off count, too."""
    reports = tmp_path / "reports.jsonl"
    assert outcomes(reports) == {}

    def line(test: str, outcome: str, *, xfail: bool = False) -> str:
        told = {"test": f"t/integration/{test}", "outcome": outcome, "xfail": xfail, "text": outcome}
        return json.dumps(told) + "\n"

    lines = [line("a", "passed"), line("b", "passed"), line("b", "failed"), line("b", "passed"), line("c", "skipped")]
    lines += [line("d", "skipped", xfail=True), line("e", "passed", xfail=True)]
    reports.write_text("".join(lines))
    found = outcomes(reports)
    assert {name: each.what for name, each in found.items()} == {
        "a": "passed", "b": "failed", "c": "skipped", "d": "xfailed", "e": "xpassed",
    }  # fmt: skip
    assert found["b"].text == "failed"


def test_failure_on_the_plain_suite_is_no_difference() -> None:
    """Nor is a test that fails alone when plain, or ends alike then."""
    plain = {"good": "passed", "bad": "failed", "skipped": "skipped", "flaky": "passed", "once": "passed"}
    throttled = {"good": "failed", "bad": "passed", "skipped": "passed", "flaky": "failed", "once": "failed"}
    suspects = comparing.suspects({_run(PLAIN): _done(plain), _run(LOW): _done(throttled)})
    assert [each.test for each in suspects] == ["good", "skipped", "flaky", "once"]
    again = {
        "good": ("passed", "failed"), "skipped": ("skipped", "passed"), "flaky": ("failed", "failed"),
        "once": ("passed", "passed"),
    }  # fmt: skip
    alone = {
        _run(kind, test): _done({test: what})
        for test, both in again.items()
        for kind, what in zip((PLAIN, LOW), both, strict=True)
    }
    assert set(comparing.repeats(suspects)) == set(alone)
    assert [each.test for each in suspects if comparing.confirmed(each, alone)] == ["good", "skipped"]


@pytest.mark.parametrize(
    ("listed", "parked", "problem", "status"),
    [
        ([], 1, None, 1),
        ([Known("differs", "a process, *", "so")], 1, None, 0),
        ([Known("differs", "in-process, *", "so")], 1, None, 1),
        ([Known("differs", "*", "so"), Known("same", "*", "was so")], 1, None, 1),
        ([Known("differs", "*", "so"), Known("same", "in-process, *", "not run there")], 1, None, 0),
        ([Known("differs", "*", "so"), Known("not run", "*", "so")], 1, None, 0),
        ([Known("differs", "*", "so")], 0, None, 1),
        ([Known("differs", "*", "so")], 1, "has not ended", 1),
    ],
)
def test_listed_outcome_is_no_error(listed: Sequence[Known], parked: int, problem: str | None, status: int) -> None:
    """A difference that is not listed is one, a listed one that is gone, and a run that shows nothing."""
    done = {
        _run(PLAIN): _done({"differs": "passed", "same": "passed"}),
        _run(LOW): _done({"differs": "failed", "same": "passed"}, parked, problem),
    }
    assert report(done, [], comparing.suspects(done), listed) == status


def _run(kind: Kind, test: str = "test_tasks.py") -> Run:
    return Run(A_PROCESS, kind, (test,))


def _done(found: dict[str, str], parked: int = 0, problem: str | None = None) -> Done:
    return Done({test: Outcome(what) for test, what in found.items()}, parked, 1.0, problem, "")
