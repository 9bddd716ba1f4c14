"""Arguments of a call: bound as Python binds them, and given to functions of ``key``, ``fair_by``, ``unique_on``."""

# The defaults and the parameters of these functions are what is tried.
# ruff: noqa: ARG001, ARG002

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_throttle import ConfigurationError, Limit
from celery_throttle.core.arguments import Binder
from celery_throttle.tasks.registry import call_of, dedup_of, policies_of
from tests.support.machines import on_any_machine
from tests.unit.refusals import make_app, task_of

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
def test_arguments_are_bound_as_python_binds(
    function: Callable[..., Any], args: list[int], kwargs: dict[str, int]
) -> None:
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


def values(task: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    return dict(policies_of(task.app)["shop.f"].values(call_of(task, args, kwargs)))


def identity(task: Any, *args: Any, **kwargs: Any) -> str:
    dedup = dedup_of(task)
    assert dedup is not None
    return dedup.plan(call_of(task, args, kwargs)).identity


def f(a: Any, b: Any = 2) -> None: ...


def keyword_only(a: Any, *, b: Any = 2) -> None: ...


def positional_only(a: Any, b: Any = 2, /) -> None: ...


def any_names(a: Any, b: Any = 2, **others: Any) -> None: ...


CALLS: list[tuple[Callable[..., None], Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = [
    (f, lambda a, b: f"{a}/{b}", (1,), {}, "1/2"),
    (f, lambda a, b: f"{a}/{b}", (), {"a": 1}, "1/2"),
    (f, lambda a, b: f"{a}/{b}", (1, 3), {}, "1/3"),
    (f, lambda a, b: f"{a}/{b}", (1,), {"b": 3}, "1/3"),
    (f, lambda a, b=99: f"{a}/{b}", (1,), {}, "1/2"),
    (f, lambda one, two: f"{one}/{two}", (1,), {}, "1/2"),
    (f, lambda *args: f"{args}", (1,), {}, "(1, 2)"),
    (f, lambda **kwargs: f"{kwargs['a']}/{kwargs['b']}", (), {"a": 1}, "1/2"),
    (f, lambda a, **_: f"{a}", (1,), {}, "1"),
    (f, lambda a, *_: f"{a}", (1,), {}, "1"),
    (f, lambda a: f"{a}", (1,), {}, "1"),
    (keyword_only, lambda a, *, b: f"{a}/{b}", (1,), {}, "1/2"),
    (positional_only, lambda a, b: f"{a}/{b}", (1,), {}, "1/2"),
    (any_names, lambda a, b, cust: f"{a}/{b}/{cust}", (1,), {"cust": 7}, "1/2/7"),
]


@pytest.mark.parametrize(("body", "part", "args", "kwargs", "expected"), CALLS, ids=map(str, range(len(CALLS))))
def test_function_is_called_with_the_defaults_of_the_task(
    body: Any, part: Any, args: tuple[Any, ...], kwargs: dict[str, Any], expected: str
) -> None:
    task = task_of(body, limit=2, key=part, fair_by=part)
    assert values(task, *args, **kwargs)["keys"]["shop.f"] == expected
    assert values(task, *args, **kwargs)["fair"][0] == expected


def test_cost_function_is_called_with_the_defaults_of_the_task() -> None:
    assert values(task_of(f, limit=9, cost=lambda a, b: a + b), 1)["cost"] == 3


def test_unique_on_function_gets_the_defaults_of_the_task() -> None:
    all_positions = task_of(f, singleton=True, unique_on=lambda *args: args)
    assert identity(all_positions, 1) == identity(all_positions, 1, 2)
    task = task_of(f, singleton=True, unique_on=lambda a, b: (a, b))
    assert identity(task, 1) == identity(task, 1, 2) == identity(task, a=1) == identity(task, 1, b=2)
    assert identity(task, 1) != identity(task, 1, 3)


def has_headers(a: Any, headers: Any = "own") -> None: ...


def test_a_function_that_takes_headers_gets_those_of_the_message() -> None:
    def key(_: Any, *, headers: Any) -> Any:
        return headers["tenant"]

    task = task_of(f, limit=Limit("t", 2, key=key), cost=lambda a, headers: len(headers), singleton=True)
    call = call_of(task, (1,), {}, {"tenant": "acme", "x": 1})
    assert policies_of(task.app)["shop.f"].values(call) == {"keys": {"t": "acme"}, "cost": 2}


def test_a_parameter_headers_of_the_task_itself_is_an_argument() -> None:
    task = task_of(has_headers, limit=2, key=lambda a, headers: headers)
    assert values(task, 1)["keys"] == {"shop.f": "own"}


def only_names(**kw: Any) -> None: ...


def test_name_among_any_names_is_found() -> None:
    task = task_of(only_names, limit=Limit("tenant", 2, key="cust"), cost="pages", singleton=True, unique_on=["cust"])
    assert values(task, cust="acme", pages=3) == {"keys": {"tenant": "acme"}, "cost": 3}
    assert identity(task, cust="acme", pages=3) == identity(task, cust="acme", pages=4)
    assert identity(task, cust="acme", pages=3) != identity(task, cust="zeta", pages=3)
    with_path = task_of(only_names, limit=2, key="kw.cust")  # how it had to be written before
    assert values(with_path, cust="acme")["keys"] == {"shop.f": "acme"}
    with pytest.raises(ConfigurationError, match=r"^Task shop\.f: key: the call has no 'cust', only customer"):
        task_of(only_names, limit=2, key="cust").delay(customer="acme")


async def coroutine(a: Any, b: Any = 2) -> str:
    return "x"


def generator(a: Any, b: Any = 2) -> Any:
    yield a


async def async_generator(a: Any, b: Any = 2) -> Any:
    yield a


class Callables:
    async def __call__(self, a: Any, b: Any = 2) -> str:
        return "x"


@pytest.mark.parametrize("part", [coroutine, generator, async_generator, Callables()], ids=range(4))
@pytest.mark.parametrize("option", ["key", "fair_by", "cost", "unique_on"])
def test_function_without_a_value_is_refused_at_binding(part: Any, option: str) -> None:
    said = rf"the function given as {option} is (async def|a generator), and is not run as one: write def, and return"
    with pytest.raises(ConfigurationError, match=said):
        task_of(f, limit=2, singleton=True, **{option: part})


@pytest.mark.parametrize(
    "options",
    [
        {"limit": 2},
        {"limit": 2, "key": "a"},
        {"limit": 2, "key": lambda a, b: a},
        {"limit": 2, "cost": "b"},
        {"singleton": True},
        {"singleton": True, "unique_on": ["a"]},
    ],
    ids=range(6),
)
def test_wrong_arguments_are_a_type_error_as_with_plain_celery(options: dict[str, Any]) -> None:
    plain, ours = make_app().task(f, shared=False), task_of(f, **options)
    calls: list[Any] = [((), {}), ((1, 2, 3), {}), ((1,), {"c": 3}), ((1,), {"a": 3})]
    for args, kwargs in calls:
        with pytest.raises(TypeError) as expected:
            plain.delay(*args, **kwargs)
        with pytest.raises(TypeError) as raised:
            ours.delay(*args, **kwargs)
        assert str(raised.value) == str(expected.value)


def test_wrong_arguments_without_typing_are_a_type_error_too() -> None:
    """Celery lets them pass there, but which permit they need cannot be known."""
    with pytest.raises(TypeError, match=r"^Task shop\.f: key: the call has no 'a' \(missing a\)$") as raised:
        task_of(f, limit=2, key="a", typing=False).delay()
    assert isinstance(raised.value, ConfigurationError)
