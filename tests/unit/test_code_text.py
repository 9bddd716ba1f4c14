"""Options as text, by which workers of two releases are compared."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from celery_throttle.core.code_text import comparable, text_of


def enclosing(value: object) -> Callable[..., Any]:
    return lambda order: (order, value)


def more(amount: int, by: int = 1) -> int:
    return amount + by


class Key:
    def __call__(self, order: str) -> str:
        return order


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda order: order % 10, lambda order: order % 100),
        (lambda order: order + 1, lambda order: order - 1),
        (lambda order: order.day, lambda order: order.month),
        (lambda order, by=1: order + by, lambda order, by=2: order + by),
        (enclosing(1), enclosing(2)),
        (enclosing(lambda: 1), enclosing(lambda: 2)),
        (partial(more, by=1), partial(more, by=2)),
        (more, enclosing),
        (Key(), Key.__call__),
        (["a"], ["b"]),
        ({"gold": 3}, {"gold": 2}),
        ([str(number) for number in range(200)], [str(number) for number in range(201)]),
    ],
    ids=[
        *("constant", "operator", "attribute", "default", "enclosed", "enclosed function", "partial"),
        *("name", "object", "list", "dict", "long list"),
    ],
)
def test_other_values_have_other_texts(one: object, other: object) -> None:
    assert text_of(one) != text_of(other)


@pytest.mark.parametrize(
    "make", [lambda: enclosing([1, {"a"}]), Key, lambda: {"a": 1, "b": 2}], ids=["function", "object", "dict"]
)
def test_equal_values_have_one_text(make: Callable[[], object]) -> None:
    assert text_of(make()) == text_of(make())


def test_text_is_the_same_in_each_process() -> None:
    """The order of a set differs between processes, and so do addresses."""
    code = (
        "from celery_throttle.core.code_text import text_of\n"
        "print(text_of(lambda order, by=object: order in {'a', 'b', 'c', 'd', 'e'} or (lambda: by)))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(texts) == 1


def test_function_that_encloses_itself() -> None:
    def again(order: int) -> int:
        return again(order - 1) if order else 0

    assert text_of(again) == text_of(again)


def test_functions_of_several_pythons_are_compared_by_their_names() -> None:
    old, new, other = (f"shop.{name} (code {code}, Python {python})" for name, code, python in (
        ("key", "0a1b2c3d", "3.12"), ("key", "ffffffff", "3.13"), ("key", "eeeeeeee", "3.12"),
    ))  # fmt: skip
    assert len(set(comparable([old, new]).values())) == 1
    assert len(set(comparable([old, other]).values())) == 2
    assert len(set(comparable([new, "shop.tenant (code ffffffff, Python 3.12)"]).values())) == 2
