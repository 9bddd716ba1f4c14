"""A shared number."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from redis import Redis
from redis.crc import key_slot
from redis.exceptions import ResponseError

from celery_throttle.primitives import Counter, counter
from tests.primitives.faults import Resending, StoreClock

MOST = 2**53 - 1
KEY = "{throttle}:3:counter:orders"


@pytest.fixture
def make(make: Callable[..., Any]) -> Callable[..., Any]:
    """Makes counters, of either side."""
    return partial(make, "Counter")


@pytest.fixture
def orders(make: Callable[..., Any]) -> Any:
    return make("orders")


@pytest.fixture
def clock(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> StoreClock:
    return StoreClock(redis, counter, monkeypatch)


#: Calls one after the other, with their answers and the value after each; "id=a" is the id of the call.
STEPS = {
    "a counter begins at zero": [("get", 0, 0)],
    "each add returns the new value": [("add", 1, 1), ("add 5", 6, 6), ("add -7", -1, -1)],
    "a value is set if it is the expected one": [
        ("compare_and_set 0 7", True, 7),
        ("compare_and_set 0 9", False, 7),
        (f"compare_and_set 7 -{MOST}", True, -MOST),
    ],
    "a reset returns the value before": [("add 7", 7, 7), ("get_and_reset", 7, 0), ("get_and_reset", 0, 0)],
    "a step that is higher than the floor": [("add", 1, 1), ("advance 2 -5", 3, 3)],
    "a step that is as high as the floor": [("add", 1, 1), ("advance 2 3", 3, 3)],
    "a floor that is higher than the step": [("add", 1, 1), ("advance 2 4", 4, 4)],
    "the highest floor": [("add", 1, 1), (f"advance 2 {MOST}", MOST, MOST)],
    "a floor of zero is no default": [("advance 2 0", 2, 2)],
    "large numbers are exact": [
        (f"add {MOST - 1}", MOST - 1, MOST - 1),
        ("add", MOST, MOST),
        (f"compare_and_set {MOST} {MOST - 2}", True, MOST - 2),
        ("advance 1 0", MOST - 1, MOST - 1),
        ("get_and_reset", MOST - 1, 0),
    ],
    "a number out of range changes nothing": [
        (f"add {MOST}", MOST, MOST),
        ("add id=a", OverflowError, MOST),
        ("advance 1 0", OverflowError, MOST),
        ("add -1 id=a", MOST - 1, MOST - 1),
        (f"compare_and_set {MOST - 1} -{MOST - 1}", True, 1 - MOST),
        ("add -1", -MOST, -MOST),
        ("add -1", OverflowError, -MOST),
    ],
    "a call with an id again has its first reply": [
        ("add 5 id=a", 5, 5),
        ("add id=a", 5, 5),
        ("add id=b", 6, 6),
        ("compare_and_set 9 8 id=a", False, 6),
        ("compare_and_set 6 8 id=a", False, 6),
        ("compare_and_set 6 8 id=b", True, 8),
        ("compare_and_set 6 8 id=b", True, 8),
        ("advance 1 0 id=a", 9, 9),
        ("advance 1 0 id=a", 9, 9),
        ("get_and_reset id=a", 9, 0),
        ("add", 1, 1),
        ("get_and_reset id=a", 9, 1),
    ],
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_calls_have_their_answers(orders: Any, redis: Redis, steps: list[tuple[str, Any, int]]) -> None:
    for step, answer, value in steps:
        words, _, call_id = step.partition(" id=")
        method, *numbers = words.split()
        call = partial(getattr(orders, method), *map(int, numbers), **({"call_id": call_id} if call_id else {}))
        if answer is OverflowError:
            with pytest.raises(OverflowError):
                call()
        else:
            assert call() == answer, step
        assert orders.get() == value, step
        assert redis.exists(KEY) == (value != 0), step


def test_advancing_from_the_stores_time(orders: Any, clock: StoreClock) -> None:
    """The step counts from the value once that is later than the time, and also if the clock is set back."""
    first = clock.now
    assert [orders.advance(30), orders.advance(30)] == [first, first + 30]
    for moved, value in ((10, 60), (80, 90), (31, 121), (-1_000_000, 151)):
        clock.move(moved)
        assert orders.advance(30) == first + value
    assert orders.advance(0) == first + 151


def test_the_floor_is_the_servers_own_time(orders: Any, redis: Redis) -> None:
    """Not the caller's: all callers have the same."""
    before: Any = redis.time()
    floor = orders.advance(0)
    after: Any = redis.time()
    assert before <= divmod(floor, 1_000_000) <= after


def test_names_and_prefixes_do_not_meet(make: Callable[..., Any]) -> None:
    make("orders").add()
    assert [make("orders2").get(), make("orders", prefix="other").get(), make("orders").get()] == [0, 0, 1]
    assert re.fullmatch(r"<(Async)?Counter '{throttle}:3:counter:orders'>", repr(make("orders")))


def test_each_id_is_a_call_of_its_own(make: Callable[..., Any]) -> None:
    """Of one counter: a name and an id do not run into each other."""
    counters = [make("orders"), make("orders:1"), make("or")]
    assert [it.add(5, call_id=name) for it in counters for name in ("a", "1:a", "ders:1:a")] == [5, 10, 15] * 3


def test_an_id_alone_is_kept_and_that_for_a_while(orders: Any, redis: Redis) -> None:
    orders.add()
    orders.advance(30)
    orders.compare_and_set(5, 6)
    assert (redis.keys(), redis.ttl(KEY)) == ([KEY.encode()], -1)
    orders.add(call_id="a")
    (remembered,) = set(redis.keys()) - {KEY.encode()}
    assert 0 < redis.pttl(remembered) <= 600_000


def test_both_keys_of_a_call_are_on_one_shard(redis: Redis) -> None:
    """For any form of name and id."""
    count, *rest = Counter(redis, "{a}")._change("add", "{b}", 1).arguments
    assert count == 2
    assert len({key_slot(str(key).encode()) for key in rest[:2]}) == 1


@pytest.mark.parametrize(("call_id", "added", "said"), [(None, 5, 0), ("a", 4, 4)])
def test_a_lost_reply(resending: Resending, redis: Redis, call_id: str | None, added: int, said: int) -> None:
    """Without an id, a retry of redis-py counts again, and the value of a reset is lost."""
    Counter(redis, "orders").add(3)
    resent = Counter(resending, "orders")
    assert (resent.add(1, call_id=call_id), resent.get()) == (added, added)
    assert (resent.get_and_reset(call_id=call_id), resent.get()) == (said, 0)


@pytest.mark.parametrize("foreign", ["text", ["a", "list"]])
def test_a_key_that_holds_something_else_is_left_alone(orders: Any, redis: Redis, foreign: str | list[str]) -> None:
    redis.set(KEY, foreign) if isinstance(foreign, str) else redis.rpush(KEY, *foreign)
    for call in (orders.get, orders.add, orders.get_and_reset, lambda: orders.compare_and_set(0, 1)):
        with pytest.raises(ResponseError, match=r"something else|WRONGTYPE"):
            call()
    assert redis.exists(KEY)


def test_a_full_server_can_be_reset(orders: Any, full: Callable[[], None]) -> None:
    """And refuses the rest, leaving the value as it is."""
    orders.add(5)
    orders.advance(0, 0)
    full()
    for change in (orders.add, lambda: orders.advance(1)):
        with pytest.raises(ResponseError, match="maxmemory"):
            change()
    assert orders.get_and_reset(call_id="a") == 5
    assert orders.get() == 0
