"""Declarations without effect, or with an error of Python: refused when they are made, or at the worker's start."""

# These calls are wrong on purpose, and a type checker reports them, too.
# mypy: disable-error-code="arg-type, call-arg, misc, operator"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from celery_throttle import Limit, Throttled
from celery_throttle.settings import settings_of
from celery_throttle.tasks.registry import policies_of
from celery_throttle.tasks.remarks import remarks
from tests.unit.refusals import make_app, message_of, task_of


class Api(Limit):
    """A limit class of one's own."""


class Own(Throttled):
    """A task class of one's own."""


def work(order_id: object = None) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "write"),
    [
        (lambda: Throttled(limit=3)(work), "Throttled is no decorator: write @app.task(base=Throttled, limit=3)"),
        (lambda: Throttled(5)(work), "Throttled is no decorator: write @app.task(base=Throttled, limit=5)"),
        (lambda: Throttled(work), "Throttled is no decorator: write @app.task(base=Throttled, limit=5)"),
        (Throttled, "Throttled is no decorator: write @app.task(base=Throttled, limit=5)"),
        (lambda: Own(limit=3), "Own is no decorator: write @app.task(base=Own, limit=3)"),
    ],
    ids=range(5),
)
def test_base_class_used_as_a_decorator_is_refused(wrong: Callable[[], object], write: str) -> None:
    assert message_of(wrong) == write


def test_task_class_with_arguments_of_its_own_is_left_alone() -> None:
    class Greets(Throttled):
        name = "shop.greets"
        limit = 2

        def __init__(self, greeting: str) -> None:
            self.greeting, self.key = greeting, "an attribute of its own"

        def run(self) -> str:
            self.cost = 3  # as is this
            return f"{self.greeting} {self.cost}"

    app = make_app()
    task = app.register_task(Greets("hello"))
    assert task.apply().get() == "hello 3"
    assert "shop.greets" in policies_of(app)


@pytest.mark.parametrize(
    ("name", "value", "write"),
    [
        ("limit", 9, "write it at the task, or for now ThrottleControl(app).limit(task).override(9)"),
        ("rate", "5/s", "write it at the task, @app.task(base=Throttled, rate='5/s')"),
        ("singleton", True, "write it at the task, @app.task(base=Throttled, singleton=True)"),
    ],
)
def test_option_that_is_set_after_binding_is_refused(name: str, value: object, write: str) -> None:
    task = task_of(work, limit=2)
    assert message_of(lambda: setattr(task, name, value)) == f"Task shop.f: {name}={value!r} comes too late: {write}"
    assert task.limit == 2
    task.max_retries = 5  # Celery's own options are not checked
    assert task.max_retries == 5


@pytest.mark.parametrize("limit", [Limit, Api, [Limit("a", 2), Api]], ids=range(3))
def test_limit_class_in_place_of_a_limit_is_refused(limit: Any) -> None:
    name = (limit[1] if isinstance(limit, list) else limit).__name__
    assert message_of(lambda: task_of(work, limit=limit)).endswith(
        f"; write limit={name}('gpu', 4): a limit, not its class"
    )


def test_app_without_a_store_is_named() -> None:
    app = Celery("other", set_as_current=False)
    expected = "Neither the broker nor the result backend of app 'other' is Redis: set throttle_url = "
    assert message_of(lambda: settings_of(app)).startswith(expected)
    nameless = Celery(set_as_current=False)
    assert message_of(lambda: settings_of(nameless)).startswith(
        "Neither the broker nor the result backend is Redis: set"
    )


def test_limits_that_differ_name_the_app_where_there_are_several() -> None:
    other = make_app("billing")
    app = make_app()
    app.task(work, name="one", shared=False, base=Throttled, limit=Limit("api", 4))
    app.task(work, name="two", shared=False, base=Throttled, limit=Limit("api", 5))
    assert "in task one of app 'shop': give both tasks the same Limit" in message_of(app.finalize)
    assert other


@pytest.mark.parametrize(
    ("annotations", "remark"),
    [
        (
            {"shop.rendr": {"limit": 5}},
            "task_annotations gives 'shop.rendr' limit=5, but there is no such task: did you mean 'shop.render'?",
        ),
        (
            [{"mail.send": {"rate": "5/s", "max_retries": 3}}],
            "task_annotations gives 'mail.send' rate='5/s', but there is no such task",
        ),
        ({"shop.rendr": {"rate_limit": "5/s"}}, None),
        ({"*": {"max_retries": 5}}, None),
        ({"shop.render": {"limit": 5}}, None),
        (None, None),
    ],
    ids=range(6),
)
def test_annotation_of_an_unknown_task_is_remarked_on(annotations: Any, remark: str | None) -> None:
    app = make_app(task_annotations=annotations)
    app.task(work, name="shop.render", shared=False, base=Throttled, limit=2)
    app.finalize()
    assert list(remarks(app)) == ([remark] if remark else [])
