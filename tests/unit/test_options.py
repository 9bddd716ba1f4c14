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


def terms(**options: Any) -> Policy:
    found = task_policy("app.work", options)
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
    assert task_policy("app.work", {"limit": None, "rate": None}) is None


def test_option_beside_a_number_is_of_the_task() -> None:
    own = Limit("app.work", 2, key="customer_id", rate="100/m", burst=10, max_parked=7)
    assert terms(limit=2, key="customer_id", rate="100/m", burst=10, max_parked=7).limits == (own,)
    assert terms(rate="100/m").limits == (Limit("app.work", rate="100/m"),)


def test_a_rate_beside_limits_is_one_more() -> None:
    """Those with a key come first: a task waits there, out of the way of others."""
    api, tenant = Limit("api", 8), Limit("tenant", 2, key="customer_id")
    assert terms(limit=[api, tenant], rate="100/m").limits == (tenant, api, Limit("app.work", rate="100/m"))


def test_a_task_that_takes_any_name_has_any_part() -> None:
    check_part("app.work", "unique_on", "anything", signature(lambda **_: None))


@pytest.mark.parametrize("name", ["limit", "autoretry_for", "run", "_limits", "__doc__"])
def test_other_attributes_are_none_of_our_business(name: str) -> None:
    check_option_names("app.work", [name], [])


@pytest.mark.parametrize("name", ["limits", "rate", "until"])
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
