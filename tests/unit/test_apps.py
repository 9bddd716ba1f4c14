"""Apps with many tasks, and several apps in one process: Celery gives each the tasks of the others, and shared ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any
from unittest.mock import ANY
from weakref import WeakSet

import pytest
from celery import shared_task

from celery_throttle import ConfigurationError, Limit, Throttled
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.settings import Settings
from celery_throttle.core.sites import Sites
from celery_throttle.tasks.ours import REAP_TASK
from celery_throttle.tasks.registry import dedups_of, policies_of
from celery_throttle.worker.celery_side.tasks import Tasks
from tests.unit.refusals import make_app

# -- the cost of binding, which every process pays that imports the tasks ----------------------------------------------

COUNT = 30


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no shared tasks of other tests come to the apps of this one, and none of these to theirs."""
    monkeypatch.setattr("celery._state._on_app_finalizers", set())
    monkeypatch.setattr("celery._state._apps", WeakSet())


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


#: Options of many tasks, by their kind.
KINDS: dict[str, dict[str, Any]] = {
    "own": {"limit": 2},
    "shared": {"limit": Limit("shared", 4)},
    "once": {"singleton": True},
}


def declare(app: Any, kind: str, number: int) -> None:
    for index in range(number):
        if kind == "class":
            app.register_task(type(f"Task{index}", (Throttled,), {"limit": 2, "run": lambda self: None})())
        elif kind == "several":  # each of two apps has a limit of this name
            limit = Limit("api", 4 if app.main == "one" else 5)
            app.task(nothing, base=Throttled, limit=limit, name=f"{app.main}.{index}")
        else:
            app.task(nothing, base=Throttled, shared=False, name=f"{kind}.{index}", **KINDS[kind])


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
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="give both tasks the same Limit"):
            bad.bind(app)
    assert policies_of(app)["task"].limits == (Limit("api", 2),), "a worker that runs must not run it without any"
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


# -- several apps ------------------------------------------------------------------------------------------------------


def another(a: object = None) -> None:
    """Be another one."""


def declared(app: Any) -> dict[str, str]:
    """Return the limits that a worker of the app declares."""
    return Tasks(app, Settings("redis://127.0.0.1:1/0"), Sites({}), [], print).declared("")


def test_worker_answers_for_tasks_that_are_declared_while_it_runs() -> None:
    app = make_app("one")
    tasks = Tasks(app, Settings("redis://127.0.0.1:1/0"), Sites({"host": "a7"}), [""], print)
    for options, limits in (({"limit": 2}, {"call": "2"}), ({"limit": 1, "per": "host"}, {"call": "2", "each": ANY})):
        version = tasks.version
        app.task(nothing, base=Throttled, name=list(limits)[-1], **options)
        app.finalize()
        assert (tasks.declared(""), list(tasks.options["limit"])) == (limits, list(limits))
        assert tasks.version != version
    assert tasks.names.find("", [Bucket("each")], "celery") == "each"
    assert tasks.sites_for("") is not None


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("looked_at", [True, False])
def test_limits_of_the_same_name(lazy: bool, looked_at: bool) -> None:
    """Each worker declares the limits of its own app, for every order of finalizing."""
    shared_task(base=Throttled, limit=Limit("mail", 2), name="shared")(nothing)
    one, two = make_app("one"), make_app("two")
    first = one.task(nothing, base=Throttled, limit=Limit("api", 4), name="one.call", lazy=lazy)
    second = two.task(another, base=Throttled, limit=Limit("api", 5), name="two.call", lazy=lazy)
    two.task(another, base=Throttled, limit=Limit("api", 5), name="two.again", lazy=lazy, bind=True)
    if looked_at:
        assert (first.limit.permits, second.limit.permits) == (4, 5)
    for app in (one, two):
        app.finalize()
        assert {"shared", "one.call", "two.call", "two.again"} <= set(app.tasks)
    assert declared(one) == {"api": "4", "mail": "2"}
    assert declared(two) == {"api": "5", "mail": "2"}


def test_a_task_that_is_declared_later_is_the_apps_own() -> None:
    one, two = make_app("one"), make_app("two")
    two.task(another, base=Throttled, limit=Limit("api", 5), name="two.call")
    one.finalize()
    one.task(nothing, base=Throttled, limit=Limit("api", 4), name="one.call")
    two.finalize()
    assert (declared(one), declared(two)) == ({"api": "4"}, {"api": "5"})


def test_task_shared_later_belongs_to_no_single_app() -> None:
    one, two = make_app("one"), make_app("two")
    assert two
    one.task(nothing, base=Throttled, limit=Limit("api", 4), name="one.call")
    one.finalize()
    shared_task(base=Throttled, limit=Limit("api", 2), name="shared")(another)
    assert declared(one) == {"api": "4"}


def test_one_shared_limit_and_another_of_an_app() -> None:
    """Of the two that an app shares and the one that it has itself, its own counts."""
    shared_task(base=Throttled, limit=Limit("api", 2), name="shared")(nothing)
    one, two = make_app("one"), make_app("two")
    one.task(another, base=Throttled, limit=Limit("api", 4, key="a"), name="one.call")
    one.finalize()
    two.finalize()
    assert declared(one) == {"api": "4"}


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_an_app_that_contradicts_itself_is_refused(shared: bool, lazy: bool) -> None:
    one, two = make_app("one"), make_app("two")
    assert two
    one.task(nothing, base=Throttled, limit=Limit("api", 4), name="call", shared=shared)

    def again() -> None:
        one.task(another, base=Throttled, limit=Limit("api", 5), name="again", lazy=lazy, shared=shared)
        one.finalize()

    with pytest.raises(ConfigurationError, match=r"limit 'api' is \d here and \d in task \w+ of app 'one': give"):
        again()


@pytest.mark.parametrize("both_shared", [True, False])
def test_shared_tasks_that_contradict_others_are_refused(both_shared: bool) -> None:
    alone = make_app("alone")
    shared_task(base=Throttled, limit=Limit("api", 2), name="shared")(nothing)
    make = shared_task if both_shared else alone.task
    make(base=Throttled, limit=Limit("api", 4), name="call")(another)
    with pytest.raises(ConfigurationError, match="limit 'api'"):
        alone.finalize()
