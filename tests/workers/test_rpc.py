"""Singletons with ``result_backend = "rpc://"``, where the result of a call goes to its caller only."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, group
from celery.exceptions import TaskRevokedError

from celery_throttle import ConfigurationError, DuplicateTask, Throttled
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Workers

ANSWERS = "tests.support.apps.answers"
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


# -- refused and working options -------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_conflict", ["return_existing", "replace"])
def test_a_call_is_refused(on_conflict: str) -> None:
    """Wherever the option is written. A worker does not start, see test_start.py."""
    fix = rf"Task once: on_conflict='{on_conflict}' .*rpc://.*result_backend = 'redis://.*'raise'.*ignore_result=True"
    task, other = make_task(on_conflict=on_conflict), make_task(on_conflict="raise")
    other.delay(5)
    for call in (
        lambda: task.delay(5),
        lambda: group(task.s(5), task.s(5)).apply_async(),
        lambda: other.apply_async((5,), throttle={"on_conflict": on_conflict}),
    ):
        with pytest.raises(ConfigurationError, match=fix):
            call()


@pytest.mark.parametrize(
    ("conf", "options", "call"),
    [
        *(({}, {"on_conflict": on_conflict}, {}) for on_conflict in ("raise", "skip", "keep_last")),
        ({}, {"ignore_result": True}, {}),
        ({}, {}, {"ignore_result": True}),
        ({"task_ignore_result": True}, {}, {}),
        ({"result_backend": None}, {}, {}),
        ({"result_backend": "cache+memory://"}, {}, {}),
        ({"task_always_eager": True}, {}, {}),
        ({"throttle_enabled": False}, {}, {}),
    ],
    ids=str,
)
def test_working_options_are_not_refused(conf: dict[str, Any], options: dict[str, Any], call: dict[str, Any]) -> None:
    make_task(conf, **options).apply_async((5,), **call)


# -- answers -----------------------------------------------------------------------------------------------------------


def test_each_caller_gets_its_own_answer(app: Any, journal: Journal, state: State) -> None:
    first = app.raises.delay("a")
    with pytest.raises(DuplicateTask) as raised:
        app.raises.delay("a")
    assert raised.value.existing_id == first.id
    app.skip.delay("b")
    for skipped in (app.skip.delay("b"), app.app.send_task(app.skip.name, ("b",))):
        with pytest.raises(TaskRevokedError, match=r"^skipped: "):
            skipped.get(timeout=HANGS_AFTER)
    assert app.ignored.delay("c").id == app.ignored.delay("c").id
    journal.let_go("a", "b", "c")
    assert first.get(timeout=HANGS_AFTER) == "a"
    journal.wait_finished(3)

    runs = journal.wait_begun(app.last.delay("d"))
    replaced, newest = app.last.delay("e"), app.last.delay("f")
    with pytest.raises(TaskRevokedError):
        replaced.get(timeout=HANGS_AFTER)
    journal.let_go("d", "f")
    assert [each.get(timeout=HANGS_AFTER) for each in (runs, newest)] == ["d", "f"]
    state.wait_empty()


def test_a_duplicate_in_a_group_fails(app: Any, journal: Journal, state: State) -> None:
    """It must end, and its worker cannot know the outcome of the first."""
    whole: Any = group(app.skip.s("a"), app.skip.s("a")).apply_async()
    first, second = whole.results
    state.wait_parked(1)
    journal.let_go("a")
    assert first.get(timeout=HANGS_AFTER) == "a"
    with pytest.raises(ConfigurationError, match=rf"Task {app.skip.name}: .*rpc://"):
        second.get(timeout=HANGS_AFTER)
    assert journal.order() == ["a"]
    until(lambda: app.skip.locked_by("a") is None)
    state.wait_empty()
