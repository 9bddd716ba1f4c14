"""Which calls are the same call, and the options of a task that runs once."""

from __future__ import annotations

import json
from collections import OrderedDict
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils.json import dumps, loads

from celery_throttle.core.arguments import TaskCall
from celery_throttle.core.dedup import Dedup, LockPlan, carried_plan, fenced, task_dedup
from celery_throttle.core.identity import IDENTITY_LENGTH, identity_of, pick
from celery_throttle.errors import ConfigurationError
from tests.support.machines import on_any_machine


class Color(IntEnum):
    RED = 1


WHEN = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)


SAME: list[tuple[object, object]] = [
    ((1, 2), [1, 2]),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (OrderedDict(b=2, a=1), {"a": 1, "b": 2}),
    ({1: "x"}, {"1": "x"}),
    (Color.RED, 1),
    ({3, 1, 2}, {1, 2, 3}),
    (bytearray(b"x"), b"x"),
]
DIFFERENT: list[tuple[object, object]] = [
    *((1, "1"), (True, 1), (None, "None"), (b"x", "x"), ("\u00e9", "e\u0301"), ("*", "?"), ("a:b", "a b")),
    ([1, [2, 3]], [[1, 2], 3]),
    (["ab", "c"], ["a", "bc"]),
    ({"a": {"b": 1}}, {"a": 1, "b": 1}),
    ("x" * 1_000_000, "x" * 1_000_001),
    (Decimal("1.0"), Decimal("1.00")),
]


@pytest.mark.parametrize(("one", "other"), SAME, ids=range(len(SAME)))
def test_the_same(one: object, other: object) -> None:
    assert identity_of("t", one) == identity_of("t", other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=range(len(DIFFERENT)))
def test_not_the_same(one: object, other: object) -> None:
    assert identity_of("t", one) != identity_of("t", other)
    assert len(identity_of("t", one)) == IDENTITY_LENGTH
    assert identity_of("t", one) != identity_of("u", one)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.uuids(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=8,
)


@on_any_machine
@given(values)
def test_a_value_that_went_through_a_broker_is_the_same(value: Any) -> None:
    assert identity_of("t", loads(dumps(value))) == identity_of("t", value)


def test_typed_values_that_went_through_a_broker_are_the_same() -> None:
    for value in (WHEN, WHEN.date(), WHEN.time(), Decimal("1.50"), UUID(int=7), b"\xff\0"):
        assert identity_of("t", loads(dumps([value]))) == identity_of("t", [value]), value


def test_incomparable_values_are_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        identity_of("t", {"a": [object()]})


def test_a_path_into_the_arguments() -> None:
    assert pick({"order": {"id": 17}}, "order.id") == 17
    assert pick({"when": WHEN}, "when.year") == 2026
    with pytest.raises(ConfigurationError, match=r"no 'order\.number', only order"):
        pick({"order": {"id": 17}}, "order.number")


# -- the options of a task that runs once ------------------------------------------------------------------------------


def dedup(**options: Any) -> Dedup:
    made = task_dedup("shop.charge", options.pop("singleton", True), options)
    assert made is not None
    return made


def test_defaults() -> None:
    assert dedup() == Dedup(None, "finished", "return_existing", 0.0, 86400.0)
    assert dedup(remember=timedelta(days=1), lock_ttl=timedelta(hours=1)) == Dedup(remember=86400.0, lock_ttl=3600.0)
    assert task_dedup("shop.charge", False, {}) is None


def test_options_of_a_call_are_checked_together_with_the_tasks() -> None:
    with pytest.raises(ConfigurationError, match="remember"):
        dedup(remember=5).for_call("shop.charge", {"on_conflict": "replace"})


CARRIED = LockPlan("0" * 40, Dedup(remember=5.0, lock_ttl=60.0)).header("t", "eu")


def test_a_function_of_the_arguments() -> None:
    both = dedup(unique_on=lambda order, **_: order["id"])
    one, other = ({"id": 1, "at": at} for at in (5, 6))
    calls = [TaskCall("t", lambda order, b: None, [first], {"b": b}) for first, b in ((one, 1), (other, 2))]
    plans = [both.plan(call) for call in calls]
    assert plans[0].identity == plans[1].identity


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"identity": 5},
        {"identity": "short"},
        {"identity": "0" * 40, "on_conflict": "no"},
        CARRIED | {"task": "another"},
    ],
)
def test_a_header_that_cannot_be_used_counts_as_none(header: dict[str, object]) -> None:
    assert carried_plan(CARRIED, "t") is not None
    assert carried_plan(header, "t", dedup()) is carried_plan(header, "t") is None


@pytest.mark.parametrize(
    "value", [{"lock_until": "no"}, {"remember_ms": -1}, {"ttl_ms": 2.5}, {"on_conflict": "replace"}]
)
def test_options_in_a_header_that_cannot_be_used_are_those_of_the_task(value: dict[str, object]) -> None:
    ours = dedup(lock_ttl=7)
    theirs, with_value = (carried_plan(header, "t", ours) for header in (CARRIED, CARRIED | value))
    assert theirs is not None
    assert with_value is not None
    assert (theirs.dedup.remember, theirs.dedup.lock_ttl, theirs.group) == (5.0, 60.0, "eu")
    assert (with_value.dedup.remember, with_value.dedup.lock_ttl) == (0.0, 7.0)


def test_header_for_a_task_that_is_no_singleton_here_names_the_task() -> None:
    """A body may forward its headers to other tasks."""
    header = {name: value for name, value in CARRIED.items() if name != "task"}
    assert carried_plan(header, "t") is None
    assert carried_plan(header, "t", dedup()) is not None


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
    token, plan = 2**53 - 1, LockPlan("i", dedup()).spec
    assert json.loads(fenced(plan, token)[0]) == json.loads(plan) | {"fence": str(token)}
