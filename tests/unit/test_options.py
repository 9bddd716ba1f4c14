"""The options of a task, checked when it is bound."""

from __future__ import annotations

import re
from typing import Any

import pytest

from celery_throttle.core.limits import Limit
from celery_throttle.core.options import check_option_names, check_same, task_limit
from celery_throttle.errors import ConfigurationError


def test_a_number_is_a_limit_named_after_the_task() -> None:
    assert task_limit("app.work", 5) == Limit("app.work", 5)


def test_a_limit_stays_what_it_is() -> None:
    """So that several tasks share it."""
    gpu = Limit("gpu", 4)
    assert task_limit("app.work", gpu) is gpu


def test_no_option_is_no_limit() -> None:
    assert task_limit("app.work", None) is None


@pytest.mark.parametrize("option", [0, -1, 2.5, "5", True, False, [Limit("a", 1)]])
def test_anything_else_is_refused(option: Any) -> None:
    """The message names the task and what it got."""
    with pytest.raises(ConfigurationError, match=r"Task app\.work: limit .*got " + re.escape(repr(option))):
        task_limit("app.work", option)


@pytest.mark.parametrize("name", ["limits", "Limit", "limt", "lmit"])
def test_a_misspelt_option_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name!r}, did you mean 'limit'"):
        check_option_names("app.work", [name], [])


@pytest.mark.parametrize("name", ["rate", "cost", "key"])
def test_an_option_of_another_version_is_refused(name: str) -> None:
    """Ignoring it would leave the task unprotected."""
    with pytest.raises(ConfigurationError, match=f"{name!r} is not supported"):
        check_option_names("app.work", [name], [])


@pytest.mark.parametrize("name", ["limit", "autoretry_for", "run", "_limits", "__doc__"])
def test_other_attributes_are_none_of_our_business(name: str) -> None:
    check_option_names("app.work", [name], [])


@pytest.mark.parametrize("name", ["limits", "rate"])
def test_what_somebody_else_defines_is_theirs(name: str) -> None:
    """Celery's own options, and those of the user's base classes."""
    check_option_names("app.work", [name], [name])


def test_two_numbers_for_one_limit_are_refused() -> None:
    """The message names both tasks."""
    with pytest.raises(ConfigurationError, match=r"Task app\.b: limit 'gpu' has 5 permits here and 4 in task app\.a"):
        check_same("app.b", Limit("gpu", 5), {"app.a": Limit("gpu", 4)})


def test_the_same_limit_twice_is_shared() -> None:
    """Also a task that is bound again with another number replaces its own declaration."""
    check_same("app.b", Limit("gpu", 4), {"app.a": Limit("gpu", 4), "app.c": Limit("cpu", 9)})
    check_same("app.b", Limit("gpu", 5), {"app.b": Limit("gpu", 4)})
