"""Arguments of a call by name: the same as Python's own binding gives."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_throttle.core.arguments import Binder
from tests.support.machines import on_any_machine

FUNCTIONS: list[Callable[..., Any]] = [
    lambda: None,
    lambda a: None,
    lambda a, b: None,
    lambda a, b=1: None,
    lambda a=1, b=(), c=None: None,
    lambda a, *rest: None,
    lambda a, **rest: None,
    lambda a, /, b=2: None,
    lambda a, *, b, c=3: None,
    lambda a, b=2, *rest, c=3, **others: None,
]

names = st.sampled_from(["a", "b", "c", "d", "rest"])


@on_any_machine
@given(st.sampled_from(FUNCTIONS), st.lists(st.integers(), max_size=4), st.dictionaries(names, st.integers()))
def test_as_python_binds(function: Callable[..., Any], args: list[int], kwargs: dict[str, int]) -> None:
    try:
        expected = inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        with pytest.raises(TypeError):
            Binder(function).bind(tuple(args), kwargs)
        return
    expected.apply_defaults()
    assert list(Binder(function).bind(tuple(args), kwargs).items()) == list(expected.arguments.items())


def test_a_method_has_its_self() -> None:
    assert Binder("text".replace).bind(("a", "b"), {}) == {"old": "a", "new": "b", "count": -1}
