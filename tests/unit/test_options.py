"""The options of a task, checked when it is bound."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest

from celery_throttle.core.limits import Limit
from celery_throttle.core.options import check_option_names, task_policy
from celery_throttle.core.policy import Policy
from celery_throttle.core.same_limits import DeclaredLimits
from celery_throttle.errors import ConfigurationError
from celery_throttle.tasks.options import check_part

API, GPU, TENANT = Limit("api", 8), Limit("gpu", 4), Limit("tenant", 2, key="customer_id")
OWN: dict[str, Any] = {"key": "customer_id", "rate": "100/m", "burst": 10, "max_parked": 7}


def terms(**options: Any) -> Policy:
    found = task_policy("app.work", options)
    assert found
    return found


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        pytest.param({"limit": 5}, (Limit("app.work", 5),), id="a number is a limit named after the task"),
        pytest.param({"limit": GPU}, (GPU,), id="a limit keeps its own values, so that several tasks share it"),
        pytest.param({"limit": 2, **OWN}, (Limit("app.work", 2, **OWN),), id="options beside a number are its own"),
        pytest.param({"rate": "100/m"}, (Limit("app.work", rate="100/m"),), id="a rate is a limit, too"),
        pytest.param(
            {"limit": [API, TENANT], "rate": "100/m"},
            (TENANT, API, Limit("app.work", rate="100/m")),
            id="a rate beside limits is one more, and those with a key come first",
        ),
    ],
)
def test_limits_of_a_task(options: dict[str, Any], limits: tuple[Limit, ...]) -> None:
    assert terms(**options).limits == limits


def test_no_option_is_no_limit() -> None:
    assert task_policy("app.work", {"limit": None, "rate": None}) is None


def test_a_task_that_takes_any_name_has_any_part() -> None:
    check_part("app.work", "unique_on", "anything", signature(lambda **_: None))


@pytest.mark.parametrize("name", ["limit", "autoretry_for", "run", "_limits", "__doc__"])
def test_other_attributes_are_none_of_our_business(name: str) -> None:
    check_option_names("app.work", [name], [])


@pytest.mark.parametrize("name", ["limits", "rate", "until"])
def test_options_of_other_packages_are_left_alone(name: str) -> None:
    """Celery's own options, and those of the user's base classes."""
    check_option_names("app.work", [name], [name])


@pytest.mark.parametrize(("limit", "here"), [(Limit("gpu", 5), "5"), (Limit("gpu", 5, key="order"), "5 for each key")])
def test_two_declarations_of_one_limit_are_refused(limit: Limit, here: str) -> None:
    """The message names both tasks. A task that is bound again replaces its own declaration."""
    limits = DeclaredLimits()
    limits.add("app.a", terms(limit=GPU))
    limits.add("app.c", terms(limit=Limit("cpu", 9)))
    limits.check("app.b", terms(limit=GPU))
    with pytest.raises(ConfigurationError, match=rf"Task app\.b: limit 'gpu' is {here} here and 4 in task app\.a"):
        limits.check("app.b", terms(limit=limit))
    limits.remove("app.a", terms(limit=GPU))
    limits.check("app.b", terms(limit=limit))
