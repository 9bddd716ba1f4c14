"""Which calls are the same call."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime, timezone
from decimal import Decimal
from enum import IntEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils import json

from celery_throttle.core.identity import IDENTITY_LENGTH, identity_of, pick
from celery_throttle.errors import ConfigurationError
from tests.support.machines import on_any_machine


class Color(IntEnum):
    RED = 1


WHEN = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 2), [1, 2]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (OrderedDict(b=2, a=1), {"a": 1, "b": 2}),
        ({1: "x"}, {"1": "x"}),
        (Color.RED, 1),
        ({3, 1, 2}, {1, 2, 3}),
        (bytearray(b"x"), b"x"),
    ],
)
def test_the_same(one: object, other: object) -> None:
    assert identity_of("t", one) == identity_of("t", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "1"),
        (True, 1),
        (None, "None"),
        ([1, [2, 3]], [[1, 2], 3]),
        (["ab", "c"], ["a", "bc"]),
        (b"x", "x"),
        ({"a": {"b": 1}}, {"a": 1, "b": 1}),
        ("\u00e9", "e\u0301"),
        ("*", "?"),
        ("a:b", "a b"),
        ("x" * 1_000_000, "x" * 1_000_001),
        (Decimal("1.0"), Decimal("1.00")),
    ],
)
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
    assert identity_of("t", json.loads(json.dumps(value))) == identity_of("t", value)


@pytest.mark.parametrize("value", [WHEN, WHEN.date(), WHEN.time(), Decimal("1.50"), UUID(int=7), b"\xff\0"])
def test_typed_values_that_went_through_a_broker_are_the_same(value: Any) -> None:
    assert identity_of("t", json.loads(json.dumps([value]))) == identity_of("t", [value])


def test_incomparable_values_are_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        identity_of("t", {"a": [object()]})


def test_a_path_into_the_arguments() -> None:
    assert pick({"order": {"id": 17}}, "order.id") == 17
    assert pick({"when": WHEN}, "when.year") == 2026
    with pytest.raises(ConfigurationError, match=r"no 'order\.number', only order"):
        pick({"order": {"id": 17}}, "order.number")
