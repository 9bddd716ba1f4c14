"""Warnings about options without effect."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, Task

from celery_throttle import Limit, Throttled
from celery_throttle.tasks.remarks import remarks
from tests.unit.refusals import make_app


def nothing(order_id: object = None) -> None:
    """Be a task."""


def said(task_cls: Any = "celery.app.task:Task", conf: dict[str, Any] | None = None, **options: Any) -> list[str]:
    app: Any = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False, task_cls=task_cls)
    app.conf.update(**conf or {})
    app.task(nothing, name="shop.f", shared=False, **options)
    app.finalize()
    return [remark for remark in remarks(app) if "shop.f" in remark]


OPTIONS = ["limit=5", "limit=Limit('gpu', 4)", "limit=2, key='order_id'", "rate='100/m'", "singleton=True, remember=60"]


@pytest.mark.parametrize("code", [*OPTIONS, "unique_on=['order_id']"])
def test_options_without_our_base(code: str) -> None:
    remark = (
        f"Task shop.f has {code} but not base=Throttled: it is NOT limited. Write @app.task(base=Throttled, {code})"
    )
    options = eval(f"dict({code})", {"Limit": Limit})
    assert said(**options) == said(conf={"task_annotations": {"shop.f": options}}) == [remark]


@pytest.mark.parametrize(
    ("options", "write"),
    [
        ({}, "Write limit=5, rate='100/m' or singleton=True beside it"),
        ({"conf": {"throttle_enabled": False}}, "Write limit=5, rate='100/m' or singleton=True beside it"),
        ({"rate_limit": "9/m"}, "Its rate_limit is Celery's, which each worker counts for itself: write rate='9/m'"),
    ],
    ids=str,
)
def test_our_base_without_options(options: dict[str, Any], write: str) -> None:
    expected = f"Task shop.f has base=Throttled but no option of it: it is NOT limited. {write}, or leave the base out"
    assert said(base=Throttled, **options) == [expected]


class Theirs(Task):  # type: ignore[type-arg]
    """Another plugin's, with options of the same names."""

    abstract = True
    unique_on = None
    limit = 0


class Quiet(Throttled):
    abstract = True
    limit = 3


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rate_limit": "5/s"},
        {"key": "theirs", "cost": 3},
        {"base": Theirs, "unique_on": ["a"], "limit": 5},
        {"base": Throttled, "limit": 5},
        {"base": Throttled, "singleton": True},
        {"base": Throttled, "limit": None},
        {"base": Quiet, "limit": None},
        {"task_cls": Throttled},
        {"task_cls": Quiet},
        {"task_cls": Theirs, "base": Throttled, "limit": 5},
    ],
    ids=str,
)
def test_options_as_intended_give_no_warning(options: dict[str, Any]) -> None:
    assert said(**options) == []


RENDR = {"shop.rendr": {"limit": 5}}
SEND: Any = [{"mail.send": {"rate": "5/s", "max_retries": 3}}]


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (RENDR, ["'shop.rendr' limit=5, but there is no such task: did you mean 'shop.render'?"]),
        (SEND, ["'mail.send' rate='5/s', but there is no such task"]),
        ({"shop.rendr": {"rate_limit": "5/s"}}, []),
        ({"*": {"max_retries": 5}}, []),
        ({"shop.render": {"limit": 5}}, []),
        (None, []),
    ],
    ids=range(6),
)
def test_annotation_of_an_unknown_task_is_remarked_on(annotations: Any, expected: list[str]) -> None:
    app = make_app(task_annotations=annotations)
    app.task(nothing, name="shop.render", shared=False, base=Throttled, limit=2)
    app.finalize()
    assert list(remarks(app)) == [f"task_annotations gives {each}" for each in expected]


def test_a_setting_that_lacks_the_namespace() -> None:
    """It may be another package's, so there is only a warning."""
    app: Any = Celery("shop", set_as_current=False)
    settings = SimpleNamespace(
        CELERY_BROKER_URL="redis://b", THROTTLE_LEASE=5, THROTTLE_RATES={}, CELERY_THROTTLE_URL=None
    )
    app.config_from_object(settings, namespace="CELERY")
    assert list(remarks(app)) == ["Setting THROTTLE_LEASE has no effect: write CELERY_THROTTLE_LEASE"]
