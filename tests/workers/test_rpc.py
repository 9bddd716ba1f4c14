"""Singletons with ``result_backend = "rpc://"``, where the result of a call goes to its caller only."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, group
from celery.exceptions import TaskRevokedError

from celery_throttle import ConfigurationError, DuplicateTask, Throttled
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers
from tests.workers.conftest import ONCE

ANSWERS = "tests.support.apps.answers"
QUICKLY = 15.0
NOWHERE = "redis://127.0.0.1:1/0"


def nothing(number: int) -> int:
    """Be a task."""
    return number


def make_task(conf: dict[str, Any] | None = None, **options: Any) -> Any:
    app: Any = Celery("rpc", broker="memory://", backend="rpc://", set_as_current=False)
    app.conf.update(throttle_url=NOWHERE, **(conf or {}))
    return app.task(shared=False, base=Throttled, singleton=True, name="once", **options)(nothing)


@pytest.fixture
def app(workers: Workers) -> Any:
    """The app, with a worker."""
    workers.backend = "rpc://"
    workers.start(ANSWERS, concurrency=3)
    return workers.app(ANSWERS)


# -- refused ---------------------------------------------------------------------------------------------------------


def test_a_worker_does_not_start(workers: Workers) -> None:
    workers.backend = "rpc://"
    worker = workers.start(ONCE, wait=False)
    assert worker.wait() == 1
    line = worker.log().splitlines()[-1]
    assert line.startswith(f"Error: Task {ONCE}."), line
    assert "on_conflict='re" in line
    assert "rpc://" in line
    assert "Traceback" not in worker.log()


@pytest.mark.parametrize("on_conflict", ["return_existing", "replace"])
def test_a_call_is_refused(on_conflict: str) -> None:
    task = make_task(on_conflict=on_conflict)
    fix = rf"Task once: on_conflict='{on_conflict}' .*rpc://.*result_backend = 'redis://.*'raise'.*ignore_result=True"
    with pytest.raises(ConfigurationError, match=fix):
        task.delay(5)
    with pytest.raises(ConfigurationError, match=fix):
        group(task.s(5), task.s(5)).apply_async()


def test_wrong_option_of_one_call_is_refused_too() -> None:
    task = make_task(on_conflict="raise")
    task.delay(5)
    with pytest.raises(ConfigurationError, match=r"Task once: on_conflict='return_existing' .*rpc://"):
        task.apply_async((5,), throttle={"on_conflict": "return_existing"})


@pytest.mark.parametrize(
    ("conf", "options"),
    [
        ({}, {"on_conflict": "raise"}),
        ({}, {"on_conflict": "skip"}),
        ({}, {"on_conflict": "keep_last"}),
        ({}, {"ignore_result": True}),
        ({"task_ignore_result": True}, {}),
        ({"result_backend": None}, {}),
        ({"result_backend": "cache+memory://"}, {}),
        ({"task_always_eager": True}, {}),
        ({"throttle_enabled": False}, {}),
    ],
    ids=str,
)
def test_working_options_are_not_refused(conf: dict[str, Any], options: dict[str, Any]) -> None:
    make_task(conf, **options).delay(5)


def test_a_call_that_ignores_its_result_is_not_refused() -> None:
    make_task().apply_async((5,), ignore_result=True)


# -- working options ---------------------------------------------------------------------------------------------------


def test_each_caller_gets_its_own_answer(app: Any, journal: Journal, state: State) -> None:
    first = app.raises.delay("a")
    with pytest.raises(DuplicateTask) as raised:
        app.raises.delay("a")
    assert raised.value.existing_id == first.id
    skipped = [app.skip.delay("b"), app.skip.delay("b")][1]
    with pytest.raises(TaskRevokedError, match=r"^skipped: "):
        skipped.get(timeout=QUICKLY)
    by_name = app.app.send_task(app.skip.name, ("b",))
    with pytest.raises(TaskRevokedError, match=r"^skipped: "):
        by_name.get(timeout=QUICKLY)
    assert app.ignored.delay("c").id == app.ignored.delay("c").id
    journal.let_go("a", "b", "c")
    assert first.get(timeout=QUICKLY) == "a"
    journal.wait_finished(3)
    state.wait_empty()


def test_the_newest_of_several_runs(app: Any, journal: Journal, state: State) -> None:
    first = journal.wait_begun(app.last.delay("a"))
    replaced, newest = app.last.delay("b"), app.last.delay("c")
    with pytest.raises(TaskRevokedError):
        replaced.get(timeout=QUICKLY)
    journal.let_go("a", "c")
    assert first.get(timeout=QUICKLY) == "a"
    assert newest.get(timeout=QUICKLY) == "c"
    state.wait_empty()


def test_a_duplicate_in_a_group_fails(app: Any, journal: Journal, state: State) -> None:
    """It must end, and its worker cannot know the outcome of the first."""
    whole: Any = group(app.skip.s("a"), app.skip.s("a")).apply_async()
    first, second = whole.results
    state.wait_parked(1)
    journal.let_go("a")
    assert first.get(timeout=QUICKLY) == "a"
    with pytest.raises(ConfigurationError, match=rf"Task {app.skip.name}: .*rpc://"):
        second.get(timeout=QUICKLY)
    assert journal.order() == ["a"]
    until(lambda: app.skip.locked_by("a") is None, timeout=QUICKLY)
    state.wait_empty()
