"""The options of a task, checked when it is bound."""

from __future__ import annotations

import re
from typing import Any

import pytest

from celery_throttle.core.limits import Limit
from celery_throttle.core.options import check_option_names, task_policy
from celery_throttle.core.policy import Policy
from celery_throttle.core.same_limits import DeclaredLimits
from celery_throttle.errors import ConfigurationError

PARAMETERS = {"order", "customer_id", "pages"}


def terms(parameters: set[str] | None = PARAMETERS, **options: Any) -> Policy:
    found = task_policy("app.work", options, parameters)
    assert found
    return found


def check(policy: Policy, declared: dict[str, Policy]) -> None:
    """Declare limits for the task app.b, of an app that has these already."""
    limits = DeclaredLimits()
    for name, known in declared.items():
        limits.add(name, known)
    if before := declared.get("app.b"):
        limits.remove("app.b", before)
    limits.check("app.b", policy)


def test_a_number_is_a_limit_named_after_the_task() -> None:
    assert terms(limit=5).limits == (Limit("app.work", 5),)


def test_limit_keeps_its_own_values() -> None:
    """So that several tasks share it."""
    gpu = Limit("gpu", 4)
    assert terms(limit=gpu).limits[0] is gpu


def test_no_option_is_no_limit() -> None:
    assert task_policy("app.work", {"limit": None, "rate": None}, None) is None


@pytest.mark.parametrize("option", [0, -1, 2.5, "5", True, False, [], [5], [Limit("a", 1), "b"]])
def test_anything_else_is_refused(option: Any) -> None:
    """The message names the task and the given value."""
    with pytest.raises(ConfigurationError, match=r"Task app\.work: limit .*got " + re.escape(repr(option))):
        terms(limit=option)


def test_option_beside_a_number_is_of_the_task() -> None:
    own = Limit("app.work", 2, key="customer_id", rate="100/m", burst=10, max_parked=7)
    assert terms(limit=2, key="customer_id", rate="100/m", burst=10, max_parked=7).limits == (own,)
    assert terms(rate="100/m").limits == (Limit("app.work", rate="100/m"),)


def test_a_rate_beside_limits_is_one_more() -> None:
    """Those with a key come first: a task waits there, out of the way of others."""
    api, tenant = Limit("api", 8), Limit("tenant", 2, key="customer_id")
    assert terms(limit=[api, tenant], rate="100/m").limits == (tenant, api, Limit("app.work", rate="100/m"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": "customer_id"}, r"key needs a limit or a rate beside it"),
        ({"limit": 2, "key": "customer"}, r"key names 'customer', but the task takes customer_id, order, pages"),
        ({"limit": 2, "key": 3}, r"key must be the name of an argument"),
        (
            {"limit": Limit("gpu", 4), "key": "order"},
            r"key belongs in the Limit here: write limit=Limit\('gpu', 4",
        ),
        ({"limit": 2, "burst": 3}, r"burst needs a rate beside it"),
        ({"rate": "100"}, r"write '10/s'"),
        ({"rate": ["10/s", "5000/h"]}, r"10/s never matters beside 5000/h .* burst=\[1, 500\]"),
        ({"rate": ["10/s", "5000/h"], "burst": [1]}, r"burst \[1\] has 1 number for 2 rates"),
        ({"cost": 2}, r"cost needs a limit"),
        ({"limit": 2, "cost": 3}, r"cost 3 is more than the 2 permits of limit 'app\.work'"),
        ({"limit": 2, "cost": 0}, r"cost must be a whole number from 1"),
        ({"limit": 2, "cost": "page"}, r"cost names 'page'"),
        ({"limit": 2, "start_deadline": 0}, r"start_deadline must be seconds"),
        ({"limit": 2, "max_parked": 0}, r"max_parked must be a whole number"),
        ({"limit": 2, "weights": {"a": 2}}, r"weights needs fair_by"),
        ({"limit": [Limit("a", 1), Limit("a", 2)]}, r"limit 'a' is there twice"),
        (
            {"limit": [Limit("a", 1, group="eu"), Limit("b", 2)]},
            r"'a' is in group 'eu' and limit 'b' in None.*group='eu'",
        ),
        (
            {"limit": [Limit("a", 1, fair_by="order"), Limit("b", 2, fair_by="order")]},
            r"limits 'a' and 'b' both have fair_by",
        ),
    ],
)
def test_impossible_option_is_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match="Task app.work: .*" + said):
        terms(**options)


@pytest.mark.parametrize("name", ["limits", "Limit", "limt", "lmit"])
def test_a_misspelt_option_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name!r}, did you mean 'limit'"):
        check_option_names("app.work", [name], [])


def test_former_name_of_an_option_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown option 'until', did you mean 'lock_until'\?$"):
        check_option_names("app.work", ["until"], [])
    check_option_names("app.work", ["until"], ["until"])


@pytest.mark.parametrize("name", ["limit", "autoretry_for", "run", "_limits", "__doc__"])
def test_other_attributes_are_none_of_our_business(name: str) -> None:
    check_option_names("app.work", [name], [])


@pytest.mark.parametrize("name", ["limits", "rate"])
def test_options_of_other_packages_are_left_alone(name: str) -> None:
    """Celery's own options, and those of the user's base classes."""
    check_option_names("app.work", [name], [name])


def test_two_numbers_for_one_limit_are_refused() -> None:
    """The message names both tasks."""
    with pytest.raises(ConfigurationError, match=r"Task app\.b: limit 'gpu' is 5 here and 1 in"):
        check(terms(limit=Limit("gpu", 5)), {"app.a": terms(limit=Limit("gpu", 1))})


def test_one_limit_with_and_without_keys_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"is 5 for each key here and 5 in task app\.a"):
        check(terms(limit=Limit("gpu", 5, key="order")), {"app.a": terms(limit=Limit("gpu", 5))})


def test_the_same_limit_twice_is_shared() -> None:
    """Also a task that is bound again with another number replaces its own declaration."""
    gpu = Limit("gpu", 4)
    check(terms(limit=gpu), {"app.a": terms(limit=gpu), "app.c": terms(limit=Limit("cpu", 9))})
    check(terms(limit=Limit("gpu", 5)), {"app.b": terms(limit=gpu)})
