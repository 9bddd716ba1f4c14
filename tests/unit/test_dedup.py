"""The options of a task that runs once."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from celery_throttle.core.arguments import TaskCall
from celery_throttle.core.dedup import Dedup, LockPlan, fenced, task_dedup
from celery_throttle.errors import ConfigurationError


def dedup(**options: Any) -> Dedup:
    made = task_dedup("shop.charge", options.pop("singleton", True), options)
    assert made is not None
    return made


def test_defaults() -> None:
    assert dedup() == Dedup(None, "finished", "return_existing", 0.0, 86400.0)
    assert task_dedup("shop.charge", False, {}) is None


def test_a_timedelta_is_seconds() -> None:
    assert dedup(remember=timedelta(days=1), lock_ttl=timedelta(hours=1)) == Dedup(remember=86400.0, lock_ttl=3600.0)


def test_options_of_a_call_are_checked_together_with_the_tasks() -> None:
    with pytest.raises(ConfigurationError, match="remember"):
        dedup(remember=5).for_call("shop.charge", {"on_conflict": "replace"})


def test_a_function_of_the_arguments() -> None:
    both = dedup(unique_on=lambda order, **_: order["id"])
    one, other = ({"id": 1, "at": at} for at in (5, 6))
    calls = [TaskCall("t", lambda order, b: None, [first], {"b": b}) for first, b in ((one, 1), (other, 2))]
    plans = [both.plan(call) for call in calls]
    assert plans[0].identity == plans[1].identity


@pytest.mark.parametrize(
    "header",
    [{}, {"identity": 5}, {"identity": "short", "on_conflict": "raise"}, {"identity": "x" * 40, "on_conflict": "no"}],
)
def test_a_header_that_cannot_be_used_counts_as_none(header: dict[str, object]) -> None:
    assert dedup().carried(header) is None


@pytest.mark.parametrize("text", ["0" * 40, '",\\\n\u00e9\ud800'])
def test_a_plan_as_the_scripts_want_it_is_json(text: str) -> None:
    plan = LockPlan(text, dedup(remember=1.5, lock_ttl=60), "17", text)
    assert json.loads(plan.spec) == {
        "identity": text,
        "lock_until": "finished",
        "remember_ms": 1500,
        "ttl_ms": 60000,
        "on_conflict": "return_existing",
        "claim": "17",
        "first": text,
    }


def test_a_fencing_token_is_added_to_the_last_digit() -> None:
    token = 2**53 - 1
    spec = json.loads(fenced(LockPlan("i", dedup()).spec, token)[0])
    assert spec.pop("fence") == str(token)
    assert spec == json.loads(LockPlan("i", dedup()).spec)
