"""Several apps in one process: Celery gives each of them the tasks of the others, and all tasks that are shared."""

from __future__ import annotations

from typing import Any

import pytest
from celery import shared_task

from celery_throttle import ConfigurationError, Limit, Throttled
from celery_throttle.core.settings import Settings
from celery_throttle.core.sites import Sites
from celery_throttle.tasks.registry import policies_of
from celery_throttle.worker.celery_side.tasks import Tasks
from tests.unit.refusals import make_app

pytestmark = pytest.mark.usefixtures("_alone")


@pytest.fixture
def alone() -> Any:
    """The only app of the process."""
    return make_app("alone")


def nothing(a: object = None) -> None:
    """Be a task."""


def another(a: object = None) -> None:
    """Be another one."""


def declared(app: Any) -> dict[str, str]:
    """Return the limits that a worker of the app declares."""
    return Tasks(policies_of(app), {}, Settings("redis://127.0.0.1:1/0"), Sites({})).declared("")


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

    with pytest.raises(ConfigurationError, match=r"limit 'api' is \d here and \d in task"):
        again()


def test_a_shared_task_that_contradicts_the_only_app_is_refused(alone: Any) -> None:
    shared_task(base=Throttled, limit=Limit("api", 2), name="shared")(nothing)
    alone.task(another, base=Throttled, limit=Limit("api", 4), name="call")
    with pytest.raises(ConfigurationError, match="limit 'api'"):
        alone.finalize()


def test_shared_tasks_that_contradict_each_other_are_refused(alone: Any) -> None:
    shared_task(base=Throttled, limit=Limit("api", 2), name="shared")(nothing)
    shared_task(base=Throttled, limit=Limit("api", 4), name="shared too")(another)
    with pytest.raises(ConfigurationError, match="limit 'api'"):
        alone.finalize()
