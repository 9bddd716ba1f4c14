"""Binding tasks costs the same for each of them, however many an app has: every process that imports them pays it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from celery_throttle import ConfigurationError, Limit, Throttled
from celery_throttle.tasks.ours import REAP_TASK
from celery_throttle.tasks.registry import dedups_of, policies_of
from tests.unit.refusals import make_app

COUNT = 30
pytestmark = pytest.mark.usefixtures("_alone")


def steps_of(function: Callable[[], object]) -> int:
    """Carry it out; return how many instructions of this library Python executed for it."""
    steps = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        if event == "call":
            if not frame.f_globals.get("__name__", "").startswith("celery_throttle"):
                return None
            frame.f_trace_opcodes = True
        steps += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        function()
    finally:
        sys.settrace(before)
    return steps


def nothing(a: object = None) -> None:
    """Be a task."""


def declare(app: Any, kind: str, number: int) -> None:
    ours: dict[str, dict[str, Any]] = {
        "own": {"limit": 2},
        "shared": {"limit": Limit("shared", 4)},
        "once": {"singleton": True},
    }
    for index in range(number):
        name = f"{kind}.{index}"
        if kind == "class":
            app.register_task(type(f"Task{index}", (Throttled,), {"limit": 2, "run": lambda self: None})())
        elif kind == "several":  # each of two apps has a limit of this name
            limit = Limit("api", 4 if app.main == "one" else 5)
            app.task(nothing, base=Throttled, limit=limit, name=f"{app.main}.{index}")
        else:
            app.task(nothing, base=Throttled, shared=False, name=name, **ours[kind])


def steps_to_bind(kind: str, number: int) -> int:
    apps = [make_app(name) for name in (("one", "two") if kind == "several" else ("one",))]

    def bind() -> None:
        for app in apps:
            declare(app, kind, number)
        for app in apps:
            app.finalize()

    steps = steps_of(bind)
    bound = {**policies_of(apps[0]), **dedups_of(apps[0])}
    assert len(bound) == number * len(apps)
    return steps


@pytest.mark.parametrize("kind", ["own", "shared", "once", "class"])
def test_task_that_is_bound_again_is_not_read_again(kind: str) -> None:
    """Celery binds each task when it makes it, and once more when it finalizes the app."""
    app = make_app()

    def bind() -> None:
        declare(app, kind, COUNT)
        app.finalize()

    first = steps_of(bind)
    again = steps_of(lambda: [task.bind(app) for task in list(app.tasks.values())])
    assert 0 < again < 0.35 * first, f"{first} instructions for {COUNT} tasks, then {again}"


def test_options_that_change_before_the_app_is_used_hold() -> None:
    app = make_app()

    class Base(Throttled):
        abstract = True
        limit = 2

    task = app.task(nothing, base=Base, name="changes", shared=False)
    assert task.name == "changes"  # which binds it
    assert policies_of(app)["changes"].limits[0].permits == 2
    Base.limit = 3
    app.finalize()
    assert policies_of(app)["changes"].limits[0].permits == 3


def test_class_that_is_refused_leaves_the_task_to_be_read_again() -> None:
    """Another class of the same name came between, and could not be bound."""
    app = make_app()
    app.task(nothing, base=Throttled, limit=Limit("api", 2), name="other", shared=False)
    good = app.task(nothing, base=Throttled, limit=Limit("api", 2), name="task", shared=False)
    app.finalize()
    bad: Any = type("Bad", (Throttled,), {"limit": Limit("api", 3), "name": "task", "run": nothing})
    with pytest.raises(ConfigurationError):
        bad.bind(app)
    assert "task" not in policies_of(app)
    good.bind(app)
    assert policies_of(app)["task"].limits == (Limit("api", 2),)


@pytest.mark.parametrize("early", [True, False])
def test_schedule_set_before_the_app_is_used_keeps_the_reaper(early: bool) -> None:
    app = make_app()
    task = app.task(nothing, base=Throttled, limit=2, name="task", shared=False)
    if early:
        assert task.name  # which binds it
        assert REAP_TASK in app.conf.beat_schedule
    app.conf.beat_schedule = {"mine": {"task": "task", "schedule": 60.0}}
    app.finalize()
    assert app.conf.beat_schedule.keys() == {"mine", REAP_TASK}


@pytest.mark.parametrize("kind", ["own", "shared", "once", "class", "several"])
def test_twice_as_many_tasks_cost_twice_as_much(kind: str) -> None:
    steps_to_bind(kind, 1)  # values that are looked up once
    few, many = steps_to_bind(kind, COUNT), steps_to_bind(kind, 2 * COUNT)
    assert many < 2.02 * few, f"{few} instructions for {COUNT} tasks, {many} for {2 * COUNT}"
