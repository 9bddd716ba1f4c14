"""What people get wrong, and what they are told: the task, the option, what was given, what to write instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from celery_throttle import ConfigurationError, Limit, RateLimited, Throttled
from celery_throttle.settings import settings_of

if TYPE_CHECKING:
    from collections.abc import Callable


def body(order_id: Any, amount: int = 0) -> None:
    """Be a task."""


def task_of(**options: Any) -> Any:
    app: Any = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.task(body, name="shop.f", shared=False, base=Throttled, **options)
    app.finalize()
    return app.tasks["shop.f"]


def settings(**conf: Any) -> Any:
    app = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.update(**conf)
    return settings_of(app)


#: Options, and what is said when the task is bound.
BOUND: list[tuple[dict[str, Any], str]] = [
    ({"limit": "gpu"}, "limit must be a whole number of 1 or more, a Limit or a list"),
    ({"limit": 5.0}, "limit must be a whole number of 1 or more, a Limit or a list of up to 8 of them, got 5.0; write"),
    (
        {"limit": 0},
        "limit must be a whole number of 1 or more, a Limit or a list of up to 8 of them, got 0; write",
    ),
    ({"limit": {"gpu": 3}}, "got {'gpu': 3}; write limit=5 or limit=Limit('gpu', 4)"),
    ({"limit": ("gpu", 3)}, "got ('gpu', 3); write limit=5 or limit=Limit('gpu', 4)"),
    ({"limit": Limit("a", 2), "burst": 3}, "burst belongs in the Limit here: write limit=Limit('a', 2, burst=...)"),
    ({"limt": 5}, "unknown option 'limt', did you mean 'limit'?"),
    ({"concurrency": 5}, "unknown option 'concurrency': celery_throttle calls this limit, write limit=5"),
    ({"limit": 2, "key": "customer"}, "key names 'customer', but the task takes amount, order_id"),
    (
        {"limit": 2, "key": lambda: 1},
        "which takes (order_id, amount=0): write key=lambda order_id, amount: ...",
    ),
    ({"limit": 2, "key": lambda a, b, c: 1}, "the function given as key takes (a, b, c), but it is called with"),
    ({"limit": Limit("a", 2, key=lambda: 1)}, "the function given as key takes ()"),
    ({"limit": 2, "fair_by": lambda: 1}, "the function given as fair_by takes ()"),
    ({"limit": 2, "cost": lambda: 1}, "the function given as cost takes ()"),
    ({"singleton": True, "unique_on": lambda: 1}, "the function given as unique_on takes ()"),
    ({"limit": 2, "cost": 10**7}, "cost must be a whole number from 1 to 100000,"),
    ({"limit": 2, "start_deadline": "30"}, "start_deadline must be seconds or a timedelta, more than 0, got '30'"),
    ({"rate": 5}, "A rate is text such as '100/m', got 5: write '5/s'"),
    ({"rate": "5 per hour"}, "Rate '5 per hour' does not say per what: write '10/s', '100/m', '5000/h' or '1/d'"),
    ({"rate": "5/minute"}, "unknown unit 'minute', write '5/m'"),
    ({"rate": "5/x"}, "unknown unit 'x', write '5/s', '5/m', '5/h' or '5/d'"),
    ({"rate": "0.5/s"}, "the count must be a whole number, got 0.5/s: write '30/m'"),
    ({"rate": "0/s"}, "the count must be 1 or more, got 0/s: write the slowest that may be, such as '1/d'"),
    ({"rate": "1/s", "burst": 0}, "burst must be a whole number of 1 or more, 1000000 at the most, got 0"),
    ({"rate": "1/s", "burst": 10**7}, "burst must be a whole number of 1 or more, 1000000 at the most, got 10000000"),
    (
        {"singleton": True, "until": "done"},
        "until must be one of 'finished', 'success', 'started', 'expires', got",
    ),
    ({"singleton": True, "remember": "1h"}, "remember must be seconds or a timedelta, 0 or more, got '1h'"),
    ({"singleton": True, "unique_on": ["id"]}, "unique_on names 'id', but the task takes amount, order_id"),
    ({"unique_on": ["order_id"]}, "unique_on needs singleton=True beside it"),
]


@pytest.mark.parametrize(("options", "said"), BOUND, ids=map(str, range(len(BOUND))))
def test_what_is_said_when_a_task_is_bound(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        task_of(**options)
    assert str(raised.value).startswith("Task shop.f: ")
    assert said in str(raised.value)


@pytest.mark.parametrize(
    "function",
    [
        lambda order_id, amount=0: order_id,
        lambda order_id, amount: order_id,
        lambda order_id, **_: order_id,
        lambda *args, **kwargs: 1,
        lambda order, *rest: order,
        lambda customer: customer,  # whoever calls it may give just that one
        str,
    ],
    ids=map(str, range(7)),
)
def test_functions_that_can_work(function: Any) -> None:
    assert task_of(limit=2, key=function, fair_by=function, singleton=True, unique_on=function)


def no_key(order_id: Any, amount: int = 0) -> None:
    """Forget to return anything."""


#: Options, arguments, and what whoever calls the task is told.
CALLED: list[tuple[dict[str, Any], tuple[Any, ...], str]] = [
    ({"limit": 2, "key": no_key}, (1,), "the function given as key returned None: have it return text or a number"),
    ({"singleton": True, "unique_on": no_key}, (1,), "the function given as unique_on returned None"),
    (
        {"limit": 2, "key": lambda order_id, **_: order_id["customer"]},
        (1,),
        "the function given as key raised TypeError: 'int' object is not subscriptable",
    ),
    (
        {"limit": 2, "key": lambda customer: 1},
        (1, 2),
        "the function given as key takes (customer), but the call has 2",
    ),
    ({"limit": 2, "key": "order_id"}, (object(),), "key: cannot compare object values: name an argument that is text"),
    ({"limit": 2, "fair_by": "order_id"}, (object(),), "fair_by: cannot compare object values"),
    ({"limit": 2, "key": "order_id.customer"}, (3,), "key: the call has no 'order_id.customer', only order_id, amount"),
    ({"limit": 2, "key": "order_id"}, (), "key: the call has no 'order_id', only nothing (missing order_id)"),
    ({"limit": 2, "cost": lambda *_: "3"}, (1,), "cost must be a whole number from 1 to 100000, got '3': write cost=2"),
    (
        {"singleton": True},
        (object(),),
        "cannot tell whether its arguments are the same as another call's",
    ),
    ({"singleton": True, "unique_on": ["order_id"]}, (), "unique_on: these are not its arguments: missing order_id"),
]


@pytest.mark.parametrize(("options", "args", "said"), CALLED, ids=map(str, range(len(CALLED))))
def test_what_whoever_calls_is_told(options: dict[str, Any], args: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        task_of(**options).delay(*args)
    assert str(raised.value).startswith("Task shop.f: ")
    assert said in str(raised.value)


def test_what_a_function_raised_is_there_to_be_looked_at() -> None:
    with pytest.raises(ConfigurationError) as raised:
        task_of(limit=2, key=lambda order_id: {}[order_id]).delay(7)
    assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "missing order_id"),
        ((1, 2, 3), "too many positional arguments"),
    ],
)
@pytest.mark.parametrize("name", ["locked_by", "unlock"])
@pytest.mark.parametrize("unique_on", [None, ["order_id"]])
def test_whose_lock(name: str, unique_on: Any, args: tuple[Any, ...], said: str) -> None:
    task = task_of(singleton=True, unique_on=unique_on)
    with pytest.raises(ConfigurationError, match=rf"^Task shop\.f: these are not its arguments: {said}$"):
        getattr(task, name)(*args)


OTHERS: list[tuple[Callable[[], object], str]] = [
    (lambda: Limit("gpu"), "Limit 'gpu' has neither a number nor a rate: write Limit('gpu', 4) or Limit('gpu', rate="),
    (lambda: Limit("gpu", "4"), "Limit 'gpu': permits must be a whole number of 1 or more, got '4'"),  # type: ignore[arg-type]
    (lambda: Limit("gpu", 4, burst=3), "Limit 'gpu': burst needs a rate beside it: write rate='100/m', burst=10"),
    (lambda: Limit("gpu", rate="5/x"), "unknown unit 'x', write '5/s'"),
    (lambda: RateLimited("30"), "got '30': write RateLimited(float(answer.headers['Retry-After']))"),  # type: ignore[arg-type]
    (lambda: RateLimited(30, limit=3), "RateLimited: limit must be a Limit or its name, got 3"),  # type: ignore[arg-type]
    (
        lambda: settings(throttle_limits={"gpu": 3}),
        "limits stand at the tasks, @app.task(base=Throttled, limit=5)",
    ),
    (lambda: settings(throttle_rate="5/s"), "limits stand at the tasks"),
    (lambda: settings(THROTTLE_LEASE=5), "Setting 'THROTTLE_LEASE' has no effect in capitals: write 'throttle_lease'"),
    (lambda: settings(throttle_url="redis://host/abc"), "throttle_url: the database must be a number, got 'abc'"),
]


@pytest.mark.parametrize(("make", "said"), OTHERS, ids=map(str, range(len(OTHERS))))
def test_what_else_is_said(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        make()
    assert said in str(raised.value)


def test_a_limit_is_named_by_itself_too() -> None:
    assert RateLimited(30, limit=Limit("gpu", 4)).limit == "gpu"
    assert str(RateLimited(2_000_000)) == "asked too often, again in 2000000 s"
