"""Mistakes of users, and the messages for them: the task, the option, the given value, the right one."""

# These calls are wrong on purpose, and a type checker reports them, too.
# mypy: disable-error-code="arg-type, attr-defined, call-arg, misc"

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from celery_throttle import ConfigurationError, Limit, RateLimited, ThrottleControl
from celery_throttle.primitives import AsyncIdentityLock, Counter, FairSemaphore, IdentityLock, RateLimiter, Redlock
from celery_throttle.settings import settings_of
from celery_throttle.tasks.remarks import remarks
from tests.unit.refusals import make_app, message_of, task_of


def body(order_id: Any, amount: int = 0) -> None:
    """Be a task."""


def any_arguments(**_: Any) -> None:
    """Be a task with the arguments of the examples."""


def settings(**conf: Any) -> Any:
    return settings_of(make_app(**conf))


APP = make_app()
#: No server answers it, and no client asks.
CLIENT = Redis(port=1)
GPU, TENANT, MAIL = Limit("gpu", 4), Limit("tenant", 2, key="tenant_id"), Limit("mail", rate="10/s")


def control() -> Any:
    return ThrottleControl(APP).limit(GPU)


#: The words of a message before its suggestion.
FIX = re.compile(r"[:;,] (write|use|did you mean|give|have it|raise|name|leave|round)\b|, so leave")
#: Options, and the message when the task is bound.
BOUND: list[tuple[dict[str, Any], str]] = [
    ({"limit": "gpu"}, "limit must be a whole number from 1 to 999999999, a Limit or a list"),
    ({"limit": 5.0}, "a Limit or a list of up to 8 of them, got 5.0; write limit=5"),
    ({"limit": {"gpu": 3}}, "got {'gpu': 3}; write limit=5 or limit=Limit('gpu', 4)"),
    ({"limit": ("gpu", 3)}, "got ('gpu', 3); write limit=5 or limit=Limit('gpu', 4)"),
    ({"limit": Limit("a", 2), "burst": 3}, "in the Limit here: write limit=Limit('a', 2, rate='100/m', burst=3)"),
    ({"limt": 5}, "unknown option 'limt', did you mean 'limit'?"),
    ({"limit": 2, "key": "customer"}, "key names 'customer', but the task takes amount, order_id: name one of these"),
    ({"limit": 2, "key": lambda: 1}, "which takes (order_id, amount=0): write key=lambda order_id, amount: ..."),
    ({"limit": 2, "key": lambda a, b, c: 1}, "the function given as key takes (a, b, c), but it is called with"),
    ({"limit": Limit("a", 2, key=lambda: 1)}, "the function given as key takes ()"),
    ({"limit": 2, "fair_by": lambda: 1}, "the function given as fair_by takes ()"),
    ({"limit": 2, "cost": lambda: 1}, "the function given as cost takes ()"),
    ({"singleton": True, "unique_on": lambda: 1}, "the function given as unique_on takes ()"),
    ({"limit": 2, "cost": 10**7}, "cost must be a whole number from 1 to 100000,"),
    ({"limit": 2, "start_deadline": "30"}, "from 0.001 to 315360000, got '30': write start_deadline=30"),
    ({"rate": "5"}, "Task shop.f: rate: A rate is text such as '100/m', got '5': write"),
    ({"rate": "5/x"}, "got '5/x': write '10/s', '100/m', '5000/h' or '1/d'"),
    ({"rate": 5}, "got 5: write '10/s'"),
    ({"rate": "5 per hour"}, "got '5 per hour': write '5/h'"),
    ({"rate": "5/minute"}, "got '5/minute': write '5/m'"),
    ({"rate": "0.5/s"}, "got '0.5/s': write '10/s'"),
    ({"rate": "0/s"}, "got '0/s': write a number from 1"),
    ({"rate": "1/s", "burst": 0}, "burst must be a whole number from 1 to 1000000, got 0"),
    ({"rate": "1/s", "burst": 10**7}, "burst must be a whole number from 1 to 1000000, got 10000000"),
    ({"singleton": True, "lock_until": "done"}, "until must be one of 'finished', 'started', 'expires', got"),
    ({"singleton": True, "remember": "1h"}, "from 0 to 315360000, got '1h': write remember=3600"),
    ({"singleton": True, "unique_on": ["id"]}, "unique_on names 'id', but the task takes amount, order_id"),
    (
        {"unique_on": ["order_id"]},
        "unique_on needs singleton=True beside it: write singleton=True, unique_on=['order_id']",
    ),
    # -- limit
    ({"limit": "5"}, "got '5'; write limit=5"),
    ({"limit": "10/m"}, "got '10/m'; write rate='10/m'"),
    ({"limit": True}, "a Limit or a list of up to 8 of them, got True; write limit=5"),
    ({"limit": -1}, "got -1; write limit=5"),
    ({"limit": 0}, "got 0; write limit=1, or let none start for now: ThrottleControl(app).limit(task).pause()"),
    ({"limit": []}, "got []; write limit=5"),
    ({"limit": [5]}, "got [5]; write limit=5"),
    ({"limit": 10**30}, f"got {10**30}; write limit=5"),
    ({"limit": [Limit("gpu", 4), "b"]}, "got [Limit('gpu', 4), 'b']; write limit=5"),
    ({"limit": [Limit("gpu", 4)] * 9}, "a list of up to 8 of them, got [Limit('gpu', 4), "),
    ({"limit": [Limit("gpu", 4), Limit("gpu", 4)]}, "limit 'gpu' is there twice: name each limit once"),
    (
        {"limit": lambda order_id, amount=0: 5},
        "; write limit=5, key='customer_id': the number is the same for each key",
    ),
    (
        {"limit": [Limit("a", 1, group="eu"), Limit("b", 1, group="us")]},
        "limit 'a' is in group 'eu' and limit 'b' in 'us', which may be on two servers",
    ),
    ({"limit": [Limit("a", 1, fair_by="order_id"), Limit("b", 1, fair_by="amount")]}, "both have fair_by"),
    # -- key, fair_by, weights
    ({"key": "order_id"}, "key needs a limit or a rate beside it: write limit=5, key='order_id'"),
    ({"limit": 2, "key": "order"}, "key names 'order', but the task takes amount, order_id: did you mean 'order_id'?"),
    ({"limit": 2, "key": ["order_id"]}, "got ['order_id']: write key='order_id'"),
    ({"limit": 2, "key": ("order_id", "amount")}, "write key=lambda order_id, amount, **_: f'{order_id}/{amount}'"),
    ({"limit": 2, "key": "order_id."}, "got 'order_id.': write key='order_id'"),
    ({"limit": 2, "key": "order_id..customer"}, "got 'order_id..customer': write key='order_id.customer'"),
    (
        {"limit": 2, "key": 5},
        "key must be the name of an argument such as 'customer_id', or a function of the arguments",
    ),
    ({"limit": 2, "key": "{order_id}"}, "key names '{order_id}', but the task takes amount, order_id: did you mean"),
    ({"limit": 2, "fair_by": ["order_id", "amount"]}, "write fair_by=lambda order_id, amount, **_: "),
    ({"fair_by": "order_id"}, "fair_by needs a limit or a rate beside it: write limit=5, fair_by='order_id'"),
    ({"limit": 2, "weights": {"gold": 3}}, "weights needs fair_by beside it: write fair_by='tenant_id', weights="),
    (
        {"limit": 2, "fair_by": "order_id", "weights": [3]},
        "weights must be a dict of numbers by value of fair_by, got [3]",
    ),
    (
        {"limit": 2, "fair_by": "order_id", "weights": {"gold": 0}},
        "weights['gold'] must be a whole number from 1 to 1000",
    ),
    ({"limit": 2, "fair_by": "order_id", "weights": {"gold": 10**6}}, "from 1 to 1000, got 1000000: write weights="),
    # -- cost, start_deadline, max_parked
    ({"cost": 2}, "cost needs a limit: write limit=5, cost=2"),
    ({"limit": 1, "cost": 3}, "cost 3 is more than the 1 permit of limit 'shop.f': raise the one or lower the other"),
    ({"limit": 2, "cost": 3}, "cost 3 is more than the 2 permits of limit 'shop.f': raise the one or lower the other"),
    ({"limit": 2, "cost": 0}, "cost must be a whole number from 1 to 100000, got 0: write cost=2"),
    ({"limit": 2, "cost": 1.5}, "cost must be a whole number from 1 to 100000, got 1.5: write cost=2"),
    ({"limit": 2, "cost": "amont"}, "cost names 'amont', but the task takes amount, order_id: did you mean 'amount'?"),
    ({"start_deadline": 30}, "start_deadline needs a limit: write limit=5, start_deadline=30"),
    ({"limit": 2, "start_deadline": 0}, "from 0.001 to 315360000, got 0: write start_deadline=30"),
    ({"limit": 2, "start_deadline": 10**12}, "from 0.001 to 315360000, got 1000000000000: write start_deadline=30"),
    ({"limit": 2, "max_parked": 0}, "max_parked must be a whole number from 1 to 999999999, got 0: write"),
    ({"limit": 2, "max_parked": "100"}, "got '100': write max_parked=1000"),
    ({"burst": 5}, "burst needs a rate beside it: write rate='100/m', burst=5"),
    ({"key": "order_id", "burst": 5}, "key, burst needs a rate beside it: write rate='100/m', key='order_id', burst=5"),
    ({"weights": {"a": 2}}, "a limit or a rate beside it: write limit=5, fair_by='tenant_id', weights={'a': 2}"),
    ({"limit": Limit("a", 2, key="order_id"), "max_parked": 7}, "limit=Limit('a', 2, key='order_id', max_parked=7)"),
    ({"max_parked": 100}, "max_parked needs a limit or a rate beside it: write limit=5, max_parked=100"),
    # -- rate, burst
    ({"rate": 0}, "got 0: write '10/s', '100/m'"),
    ({"rate": True}, "got True: write '10/s'"),
    ({"rate": b"10/s"}, "got b'10/s': write '10/s'"),
    ({"rate": (100, 60)}, "got 100: write '10/s'"),
    ({"rate": timedelta(seconds=2)}, "got datetime.timedelta(seconds=2): write '10/s'"),
    ({"rate": "10/s, 500/h"}, "got '10/s, 500/h': write '10/s'"),
    ({"rate": "100/M"}, "got '100/M': write '100/m'"),
    ({"rate": ""}, "got '': write '10/s'"),
    ({"rate": "-1/s"}, "got '-1/s': write '10/s'"),
    ({"rate": f"{10**13}/s"}, "got '10000000000000/s': write a number from 1 to 1000000000000"),
    ({"rate": []}, "Give one rate or up to 8, got 0: write '10/s'"),
    ({"rate": ["10/s", "5000/h"]}, "10/s never matters beside 5000/h with a burst of 1, which starts one every 0.72 s"),
    ({"limit": 2, "burst": 3}, "burst needs a rate beside it: write rate='100/m', burst=10"),
    ({"rate": "1/s", "burst": [1, 2]}, "burst [1, 2] has 2 numbers for 1 rate: give one for all, burst=10, or one for"),
    ({"rate": "1/s", "burst": "10"}, "burst must be a whole number from 1 to 1000000, got '10': write burst=10"),
    # -- singleton
    ({"singleton": 1}, "singleton must be True or False, got 1: write singleton=True"),
    ({"singleton": "order_id"}, "got 'order_id': write singleton=True, unique_on=['order_id']"),
    ({"singleton": ["order_id"]}, "got ['order_id']: write singleton=True, unique_on=['order_id']"),
    ({"singleton": True, "unique_on": "order_id"}, "got 'order_id': write unique_on=['order_id']"),
    ({"singleton": True, "unique_on": {"order_id"}}, "unique_on must be a list of argument names such as ['order_id']"),
    (
        {"singleton": True, "unique_on": ["order"]},
        "unique_on names 'order', but the task takes amount, order_id: did you mean",
    ),
    ({"singleton": True, "lock_until": "until_executed"}, "got 'until_executed': write lock_until='finished'"),
    ({"singleton": True, "lock_until": 60}, "got 60: write lock_until='finished'"),
    ({"singleton": True, "lock_until": True}, "got True: write lock_until='finished'"),
    ({"singleton": True, "on_conflict": "rais"}, "got 'rais': write on_conflict='raise'"),
    ({"singleton": True, "on_conflict": "replaces"}, "got 'replaces': write on_conflict='replace'"),
    ({"on_conflict": "raise"}, "on_conflict needs singleton=True beside it: write singleton=True, on_conflict='raise'"),
    ({"singleton": True, "remember": -1}, "from 0 to 315360000, got -1: write remember=3600"),
    ({"singleton": True, "remember": 10**10}, "from 0 to 315360000, got 10000000000: write remember=3600"),
    ({"singleton": True, "remember": 60, "lock_until": "started"}, "at its start the outcome is not known"),
    ({"singleton": True, "remember": True}, "from 0 to 315360000, got True: write remember=3600"),
    ({"singleton": True, "remember": 60, "lock_until": "expires"}, "lock_ttl alone sets how long it counts"),
    ({"singleton": True, "remember": 60, "on_conflict": "keep_last"}, "a remembered call does not run again"),
    ({"singleton": True, "lock_until": "started", "on_conflict": "keep_last"}, "makes no sense: use 'replace'"),
    (
        {"singleton": True, "lock_until": "expires", "on_conflict": "replace"},
        "makes no sense: use lock_until='finished'",
    ),
    ({"singleton": True, "unique_on": [1]}, "unique_on must be a list of argument names such as ['order_id']"),
    ({"singleton": True, "remember": 60, "on_conflict": "replace"}, "a remembered call does not run again"),
    (
        {"singleton": True, "lock_until": "expires", "on_conflict": "keep_last"},
        "makes no sense: use lock_until='finished'",
    ),
    ({"singleton": True, "lock_ttl": "1h"}, "lock_ttl must be seconds or a timedelta, from 1 to 315360000"),
    ({"singleton": True, "lock_ttl": 0}, "got 0: write lock_ttl=3600"),
    ({"lock_ttl": 60, "remember": 5}, "lock_ttl, remember needs singleton=True beside it"),
]


def written(message: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the options that a message suggests, each way that it names; none if they are no code."""
    option, text = re.match(r"Task shop\.f: (?:(rate): )?", message)[1], message.rpartition("write ")[2]  # type: ignore[index]
    ways = re.split(r" or (?=\w+=)", text)
    if text.endswith("..."):
        return []
    if option and not re.match(r"\w+=", text):
        ways = [f"{option}={text}" if text[:1] == "[" else f"{option}={text.partition(', ')[0]}"]
    with suppress(SyntaxError):
        return [eval(f"dict({re.split(': (?=[a-z])|, or ', way)[0]})", names) for way in ways]
    return []


@pytest.mark.parametrize(("options", "said"), BOUND, ids=map(str, range(len(BOUND))))
def test_message_when_a_task_is_bound_has_a_fix_that_works(options: dict[str, Any], said: str) -> None:
    message = message_of(lambda: task_of(body, **options))
    assert message.startswith("Task shop.f: ")
    assert said in message
    assert FIX.search(message)
    wrong = re.findall(r"\w+", message.removeprefix("Task shop.f: ").removeprefix("unknown option"))[0]
    for fix in written(message, {"Limit": Limit}):  # which works
        task_of(any_arguments, **{name: value for name, value in options.items() if name != wrong} | fix)


def test_most_messages_have_a_tested_suggestion() -> None:
    messages = [message_of(partial(task_of, body, **options)) for options, _ in BOUND]
    assert sum(bool(written(message, {"Limit": Limit})) for message in messages) > len(BOUND) * 0.7


#: Misspelt options, and the right ones.
MISSPELT = [
    ("singelton", "singleton"), ("is_singleton", "singleton"), ("remeber", "remember"), ("fairby", "fair_by"),
    ("Limit", "limit"), ("limits", "limit"), ("keys", "key"), ("weight", "weights"), ("on_conflicts", "on_conflict"),
    ("start_dedline", "start_deadline"), ("maxparked", "max_parked"), ("uniqueon", "unique_on"),
    ("until", "lock_until"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "meant"), MISSPELT, ids=[name for name, _ in MISSPELT])
def test_message_for_a_misspelt_option(name: str, meant: str) -> None:
    message = message_of(lambda: task_of(body, limit=2, **{name: 5}))
    assert message == f"Task shop.f: unknown option '{name}', did you mean '{meant}'?"


#: Options of one call, which Celery would send along without effect.
OF_A_CALL: list[tuple[dict[str, Any], str]] = [
    ({"limit": 5}, "limit=5 of a call does nothing: write it at the task, @app.task(base=Throttled, ...)"),
    ({"rate": "5/s"}, "rate='5/s' of a call does nothing"),
    ({"key": "acme"}, "key='acme' of a call does nothing"),
    ({"remember": 60}, "remember=60 of a call does nothing"),
    ({"on_conflict": "raise"}, "on_conflict='raise' of a call does nothing: write throttle={'on_conflict': 'raise'}"),
    ({"unique_on": ["order_id"]}, "write throttle={'unique_on': ['order_id']}"),
    ({"throttle": "raise"}, "throttle= of a call must be a dict with 'unique_on' or 'on_conflict', got 'raise': write"),
    ({"throttle": {"lock_until": "success"}}, "got {'lock_until': 'success'}: write throttle={'on_conflict': 'raise'}"),
    ({"throttle": {"on_conflict": "skipped"}}, "got 'skipped': write on_conflict='skip'"),
    ({"throttle": {"unique_on": "order_id"}}, "got 'order_id': write unique_on=['order_id']"),
    ({"throttle": {"unique_on": ["order"]}}, "unique_on: the call has no 'order', only order_id, amount"),
]


@pytest.mark.parametrize(("options", "said"), OF_A_CALL, ids=map(str, range(len(OF_A_CALL))))
def test_message_for_the_options_of_a_call(options: dict[str, Any], said: str) -> None:
    message = message_of(lambda: task_of(body, singleton=True).apply_async((1,), **options))
    assert message.startswith("Task shop.f: ")
    assert said in message


#: Settings of others, and tasks that have nothing of ours: a warning at the worker's start.
WARNED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {},
        {"rate_limit": "100/m"},
        "Its rate_limit is Celery's, which each worker counts for itself: write rate='100/m'",
    ),
    ({}, {}, "Task shop.f has base=Throttled but no option of it: it is NOT limited. Write limit=5"),
]


@pytest.mark.parametrize(("conf", "options", "said"), WARNED, ids=map(str, range(len(WARNED))))
def test_worker_warns_of_mistakes(conf: dict[str, Any], options: dict[str, Any], said: str) -> None:
    task = task_of(body, **options)
    task.app.conf.update(**conf)
    (remark,) = remarks(task.app)
    assert said in remark


@pytest.mark.parametrize(
    "function",
    [
        lambda order_id, amount=0: order_id,
        lambda order_id, amount: order_id,
        lambda order_id, **_: order_id,
        lambda *args, **kwargs: 1,
        lambda order, *rest: order,
        lambda customer: customer,  # a caller may give just that one
        str,
    ],
    ids=map(str, range(7)),
)
def test_functions_that_can_work(function: Any) -> None:
    assert task_of(body, limit=2, key=function, fair_by=function, singleton=True, unique_on=function)


def no_key(order_id: Any, amount: int = 0) -> None:
    """Forget to return anything."""


#: Options, arguments, and the message for the caller of the task.
CALLED: list[tuple[dict[str, Any], tuple[Any, ...], str]] = [
    ({"limit": 2, "key": no_key}, (1,), "the function given as key returned None: have it return text or a number"),
    ({"singleton": True, "unique_on": no_key}, (1,), "the function given as unique_on returned None"),
    (
        {"limit": 2, "key": lambda order_id, **_: order_id["customer"]},
        (1,),
        "the function given as key raised TypeError: 'int' object is not subscriptable",
    ),
    ({"limit": 2, "key": lambda customer: 1}, (1, 2), "the function given as key takes (customer), but the call has 2"),
    ({"limit": 2, "key": "order_id"}, (object(),), "key: cannot compare object values: name an argument that is text"),
    ({"limit": 2, "fair_by": "order_id"}, (object(),), "fair_by: cannot compare object values"),
    ({"limit": 2, "key": "order_id.customer"}, (3,), "key: the call has no 'order_id.customer', only order_id, amount"),
    ({"limit": 2, "key": "order_id", "typing": False}, (), "key: the call has no 'order_id' (missing order_id)"),
    ({"limit": 2, "cost": lambda *_: "3"}, (1,), "cost must be a whole number from 1 to 100000, got '3': write cost=2"),
    ({"singleton": True}, (object(),), "cannot compare its arguments with those of another call"),
    (
        {"singleton": True, "unique_on": ["order_id"], "typing": False},
        (),
        "unique_on: the call has no 'order_id' (missing order_id)",
    ),
]


@pytest.mark.parametrize(("options", "args", "said"), CALLED, ids=map(str, range(len(CALLED))))
def test_message_for_the_caller(options: dict[str, Any], args: tuple[Any, ...], said: str) -> None:
    message = message_of(lambda: task_of(body, **options).delay(*args))
    assert message.startswith("Task shop.f: ")
    assert said in message


def test_error_of_a_function_is_kept_as_the_cause() -> None:
    with pytest.raises(ConfigurationError) as raised:
        task_of(body, limit=2, key=lambda order_id: {}[order_id]).delay(7)
    assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.parametrize(("args", "said"), [((), "missing order_id"), ((1, 2, 3), "too many positional arguments")])
@pytest.mark.parametrize("name", ["locked_by", "unlock"])
@pytest.mark.parametrize("unique_on", [None, ["order_id"]])
def test_whose_lock(name: str, unique_on: Any, args: tuple[Any, ...], said: str) -> None:
    task = task_of(body, singleton=True, unique_on=unique_on)
    message = message_of(lambda: getattr(task, name)(*args))
    assert message == f"Task shop.f: these are not its arguments: {said}"


OTHERS: list[tuple[Callable[..., object], str]] = [
    (lambda: Limit("gpu"), "Limit 'gpu' has neither a number nor a rate: write Limit('gpu', 4) or Limit('gpu', rate="),
    (
        lambda: Limit("gpu", "4"),
        "Limit 'gpu': permits must be a whole number from 1 to 999999999, got '4': write permits=4",
    ),
    (lambda: Limit("gpu", 4, burst=3), "Limit 'gpu': burst needs a rate beside it: write rate='100/m', burst=10"),
    (lambda: Limit("gpu", rate="5/x"), "Limit 'gpu': rate: A rate is text such as '100/m'"),
    (lambda: RateLimited([30]), "got [30]: write retry_after=30"),
    (lambda: RateLimited.from_response(b"429"), "takes a response with headers, got b'429': write RateLimited(30)"),
    (lambda: RateLimited(30, max_rounds=-1), "max_rounds must be a whole number from 0 to 999999999, got -1: write"),
    (lambda: RateLimited(30, max_retries=5), "takes no max_retries=5: write max_rounds=10"),
    (lambda: RateLimited(30, limit=3), "RateLimited: limit must be a Limit or its name, got 3"),
    (lambda: settings(throttle_limits={"gpu": 3}), "set limits on the tasks, @app.task(base=Throttled, limit=5)"),
    (lambda: settings(throttle_rate="5/s"), "set limits on the tasks"),
    (lambda: settings(throttle_url="redis://host/abc"), "throttle_url: the database must be a number, got 'abc'"),
    # -- Limit
    (Limit, "Limit needs name: it takes name, permits, key, rate, burst, fair_by, weights, max_parked, group"),
    (lambda: Limit(5, "gpu"), "Limit name must be 1 to 200 printable characters, got 5: write name='gpu'"),
    (lambda: Limit("gpu", "100/m"), "Limit 'gpu': permits must be a whole number, got"),
    (lambda: Limit("gpu", "100/m"), "got '100/m': write Limit('gpu', rate='100/m')"),
    (lambda: Limit("gpu", 10**30), f"got {10**30}: write permits=4"),
    (lambda: Limit("gpu", limit=4), "Limit 'gpu' takes no limit=4: write Limit('gpu', 4)"),
    (lambda: Limit("gpu", 4, "order_id"), "Limit 'gpu' takes 'order_id' by its name alone: write key='order_id'"),
    (lambda: Limit("gpu", 4, fairby="a"), "Limit 'gpu' takes no fairby='a': did you mean fair_by=?"),
    (lambda: Limit("gpu", 4, cost=2), "takes no cost=2: set it on the task, @app.task(base=Throttled, limit=Limit("),
    (lambda: Limit("gpu", 4, lease=60), "takes no lease=60: set throttle_lease"),
    (lambda: Limit("gpu", 4, colour=1), "takes no colour=1: it takes name, permits, key, rate"),
    (lambda: Limit("gpu", 4, group="a:b"), "group must be text without colons, got 'a:b': write group='eu'"),
    (lambda: Limit("gpu", 4, key="a..b"), "got 'a..b': write key='a.b'"),
    # -- RateLimited
    (lambda: RateLimited(countdown=5), "RateLimited takes no countdown=5: write RateLimited(30)"),
    (lambda: RateLimited(-1), "retry_after must be seconds or a timedelta, from 0 to 315360000, got -1: write"),
    (lambda: RateLimited(10**12), "got 1000000000000: write retry_after=30"),
    # -- acquire, reserve
    (lambda: GPU.acquire("5"), "Limit 'gpu': timeout must be seconds or a timedelta, 0 or more, got '5': write"),
    (lambda: GPU.acquire(blocking=False), "Limit 'gpu': acquire takes no blocking=False: write timeout=0 not to wait"),
    (lambda: GPU.acquire(5, "acme"), "Limit 'gpu': acquire takes 'acme' by its name alone: write key='acme'"),
    (lambda: Limit("one", 1).acquire(cost=2, app=APP), "Limit 'one': cost 2 is more than its 1 permit: raise the one"),
    (lambda: Limit("one", rate="5").acquire(app=APP), "Limit 'one': rate: A rate is text such as"),
    (lambda: GPU.acquire(cost=5, app=APP), "Limit 'gpu': cost 5 is more than its 4 permits: raise the one or lower"),
    (
        lambda: GPU.acquire(cost=0, app=APP),
        "Limit 'gpu': cost must be a whole number from 1 to 100000, got 0: write cost=2",
    ),
    (lambda: GPU.acquire(key="acme", app=APP), "Limit 'gpu': got key='acme': it has no keys, leave key out"),
    (lambda: TENANT.acquire(app=APP), "Limit 'tenant': got key=None: name the key of the permit, key='acme'"),
    (lambda: GPU.acquire(app="proj"), "app must be the Celery app, as in app = Celery(...), got 'proj': write app=app"),
    (lambda: GPU.acquire_async(-1), "Limit 'gpu': timeout must be seconds or a timedelta, 0 or more, got -1"),
    (lambda: GPU.reserve(app=APP), "Limit 'gpu' has no rate to book a start of: write rate='100/m'"),
    (
        lambda: MAIL.reserve(max_wait="5", app=APP),
        "Limit 'mail': max_wait must be seconds or a timedelta, 0 or more, got '5'",
    ),
    (lambda: MAIL.reserve(max_wait=-1, app=APP), "got -1: write max_wait=30"),
    (lambda: MAIL.reserve(timeout=5), "Limit 'mail': reserve takes no timeout=5: write max_wait=30"),
    # -- ThrottleControl
    (
        lambda: ThrottleControl("proj"),
        "ThrottleControl: app must be the Celery app, as in app = Celery(...), got 'proj': write app=app",
    ),
    (ThrottleControl, "ThrottleControl needs app"),
    (
        lambda: ThrottleControl(APP).limit(5),
        "the name of a limit, the Limit or its task is wanted, got 5: write limit('api')",
    ),
    (
        lambda: ThrottleControl(APP).limit("api", "acme"),
        "ThrottleControl: limit takes 'acme' by its name alone: write key='acme'",
    ),
    (
        lambda: ThrottleControl(APP).limit(GPU, key="acme"),
        "Limit 'gpu' has no keys: leave key= out, or give the limit a key",
    ),
    (
        lambda: ThrottleControl(APP).explain(""),
        "a task's id or what delay() returned is wanted, got '': write explain(result.id)",
    ),
    (lambda: ThrottleControl(APP).holders(key="acme"), "write throttle.limit('tenant', key='acme').holders()"),
    (lambda: control().override("5"), "Limit gpu: permits must be a whole number from 1 to 999999999, got '5'"),
    (lambda: control().override(0), "got 0: write pause() to let none start"),
    (lambda: control().override(10**12), "from 1 to 999999999, got 1000000000000: write override(5)"),
    (lambda: control().override(2, 60), "LimitControl 'gpu': override takes 60 by its name alone: write until=60"),
    (lambda: control().override(2, until="1h"), "got '1h': write until=3600, or a datetime up to the year 2200"),
    (lambda: control().pause(seconds=60), "LimitControl 'gpu': pause takes no seconds=60: write until=3600"),
    (lambda: control().pause(reason="x"), "takes no reason='x': write why='their incident 42'"),
    (lambda: control().pause(why=5), "Limit gpu: why must be text of 500 characters at most, got 5: write why="),
    (lambda: control().parked(most=0), "most must be a whole number from 1 to 999999999, got 0: write most=100"),
    # -- settings
    (lambda: settings(throttle_url="localhost:6379"), "got 'localhost:6379': write 'redis://localhost:6379/0'"),
    (lambda: settings(throttle_url="valkey://host/0"), "got 'valkey://host/0': write 'redis://host/0'"),
    (lambda: settings(throttle_url="redis-cluster://host"), "write 'redis+cluster://host'"),
    (lambda: settings(throttle_url="redis://a;redis://b"), "throttle_url is one server, got 'redis://a;redis://b'"),
    (lambda: settings(throttle_url="sentinel://host"), "add ?master_name=mymaster to throttle_url"),
    (
        lambda: settings(throttle_url="redis+cluster://host/3"),
        "A cluster has only database 0: take /3 off throttle_url",
    ),
    (lambda: settings(throttle_url=["redis://a"]), "throttle_url must be a URL such as 'redis://host:6379/0', got"),
    (
        lambda: settings(throttle_prefix="a b"),
        "throttle_prefix must be text without braces, wildcards and blanks, got 'a b'",
    ),
    (lambda: settings(throttle_group="a:b"), "throttle_group must be text without colons, got"),
    (
        lambda: settings(throttle_lease="60"),
        "throttle_lease must be seconds or a timedelta, from 1 to 86400, got '60': write",
    ),
    (lambda: settings(throttle_lease=timedelta(days=2)), "timedelta(days=2): write throttle_lease=60"),
    (lambda: settings(throttle_lease=10**12), "to 86400, got 1000000000000: write throttle_lease=60"),
    (lambda: settings(throttle_reap_every=0), "throttle_reap_every must be seconds or a timedelta, from 1 to 86400"),
    (lambda: settings(throttle_on_store_error="open"), "one of 'hold', 'run', 'fail', got 'open': write"),
    (lambda: settings(throttle_on_store_error="FAIL"), "write throttle_on_store_error='fail'"),
    (
        lambda: settings(throttle_result_state=True),
        "Unknown setting 'throttle_result_state': leave it out, and connect a receiver to celery_throttle.signals",
    ),
    (lambda: settings(throttle_enabled="false"), "must be True or False, got 'false': write throttle_enabled=False"),
    (lambda: settings(throttle_enabled=1), "got 1: write throttle_enabled=True"),
    (
        lambda: settings(throttle_backend="redis://h"),
        "Unknown setting 'throttle_backend': there are throttle_broker, throttle_enabled,",
    ),
    (lambda: settings(throttle_key_prefix="a"), "did you mean 'throttle_prefix'?"),
    (lambda: settings(throttle_disabled=True), "Unknown setting 'throttle_disabled': throttle_enabled is the opposite"),
    (lambda: settings(throttle_keys=5), "set limits on the tasks"),
    (lambda: settings(throttle={"url": "redis://h"}), "Unknown setting 'throttle': each has a name of its own, write"),
    (lambda: settings(trottle_url="redis://h"), "Setting 'trottle_url' has no effect: write 'throttle_url'"),
    (
        lambda: settings(celery_throttle_lease=60),
        "Setting 'celery_throttle_lease' has no effect: write 'throttle_lease'",
    ),
    # -- primitives
    (
        lambda: IdentityLock("redis://h"),
        "client must be a redis.Redis, got 'redis://h': write redis.Redis.from_url('redis://h')",
    ),
    (lambda: IdentityLock(AsyncRedis()), "client must be a redis.Redis, got a redis.asyncio.client.Redis: or use"),
    (lambda: AsyncIdentityLock(CLIENT), "client must be a redis.asyncio.Redis, got a redis.client.Redis: or use"),
    (lambda: IdentityLock(CLIENT, leese=60), "IdentityLock takes no leese=60: did you mean lease=?"),
    (lambda: IdentityLock(CLIENT, "shop"), "IdentityLock takes 'shop' by its name alone: write prefix='shop'"),
    (lambda: IdentityLock(CLIENT, lease=0), "lease must be seconds or a timedelta, from 0.01 to 315360000, got 0:"),
    (lambda: IdentityLock(CLIENT).acquire("a", timeout=5), "timeout=5 is for blocking=True"),
    (lambda: FairSemaphore(CLIENT, "gpu"), "FairSemaphore needs limit: it takes client, name, limit, lease, prefix"),
    (
        lambda: FairSemaphore(CLIENT, "gpu", permits=4),
        "FairSemaphore takes no permits=4: it takes client, name, limit, lease",
    ),
    (lambda: FairSemaphore(CLIENT, "gpu", 0), "limit must be a whole number from 1 to 1000000, got 0: write limit=2"),
    (lambda: Counter(CLIENT, 5), "counter name must be 1 to 200 printable characters, got 5: write name='gpu'"),
    (lambda: RateLimiter(CLIENT, "api", "5/min"), "got '5/min': write '5/m'"),
    (lambda: Redlock(CLIENT), "Redlock needs a list of clients, got"),
    (lambda: Redlock([CLIENT]), "Redlock needs 3 or more independent servers, got 1: for one, use IdentityLock"),
    (lambda: Redlock([CLIENT] * 3, drift=2), "drift must be a part of the lease, 0 to"),
]


@pytest.mark.parametrize(("make", "said"), OTHERS, ids=map(str, range(len(OTHERS))))
def test_other_messages(make: Callable[..., object], said: str) -> None:
    assert said in message_of(make)


@pytest.mark.parametrize(
    "url",
    ["http://ana:secret@host/0", "valkey://ana:secret@host/0", "redis://a;redis://ana:secret@b", "ana:secret@host"],
)
def test_no_message_has_a_password(url: str) -> None:
    assert "secret" not in message_of(lambda: settings(throttle_url=url))


def with_the_limit() -> None:
    with GPU:
        pass


async def async_with_the_limit() -> None:
    async with GPU:
        pass


def with_what_is_for_asyncio() -> None:
    with GPU.acquire_async(app=APP):
        pass


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (with_the_limit, "Limit 'gpu': it takes a permit to be held: write with limit.acquire(timeout=30): ..."),
        (
            lambda: asyncio.run(async_with_the_limit()),
            "Limit 'gpu': it takes a permit to be held: write async with limit.acquire_async(timeout=30): ...",
        ),
        (
            GPU.release,
            "Limit 'gpu': release() gives back a permit: write permit = limit.acquire(), then permit.release()",
        ),
        (with_what_is_for_asyncio, "acquire_async is for async with: or write with limit.acquire(timeout=30): ..."),
    ],
)
def test_a_limit_is_no_permit(wrong: Callable[[], object], said: str) -> None:
    assert message_of(wrong) == said


def test_internal_error_is_not_reported_as_a_mistake() -> None:
    class Odd(Limit):
        @property
        def rates(self) -> Any:
            raise TypeError("of its own")

    with pytest.raises(TypeError, match=r"^of its own$"):
        Odd("gpu", 4)


def test_a_limit_is_named_by_itself_too() -> None:
    assert RateLimited(30, limit=Limit("gpu", 4)).limit == "gpu"
    assert str(RateLimited(29.973606)) == "asked too often, again in 29.974 s"
    assert str(RateLimited(2_000_000)) == "asked too often, again in 2000000 s"
