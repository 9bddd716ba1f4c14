"""A shared number."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from redis import Redis
from redis.crc import key_slot
from redis.exceptions import ResponseError

from celery_throttle.primitives import Counter, counter
from tests.primitives.faults import StoreClock
from tests.primitives.resending import Resending
from tests.support.machines import run_machine

MOST = 2**53 - 1
KEY = "{throttle}:2:counter:orders"


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


#: Calls with their answers, one after the other.
STEPS: dict[str, list[tuple[str, tuple[int, ...], object]]] = {
    "a counter begins at zero": [("get", (), 0)],
    "each add returns the new value": [("add", (), 1), ("add", (5,), 6), ("add", (-7,), -1), ("get", (), -1)],
    "a value is set if it is the expected one": [
        ("compare_and_set", (0, 7), True),
        ("compare_and_set", (0, 9), False),
        ("get", (), 7),
        ("compare_and_set", (7, -MOST), True),
        ("get", (), -MOST),
    ],
    "a reset returns the value before": [("add", (7,), 7), ("get_and_reset", (), 7), ("get_and_reset", (), 0)],
    "a step that is higher than the floor": [("add", (), 1), ("advance", (2, -5), 3), ("get", (), 3)],
    "a step that is as high as the floor": [("add", (), 1), ("advance", (2, 3), 3), ("get", (), 3)],
    "a floor that is higher than the step": [("add", (), 1), ("advance", (2, 4), 4), ("get", (), 4)],
    "the highest floor": [("add", (), 1), ("advance", (2, MOST), MOST), ("get", (), MOST)],
    "a floor of zero is no default": [("advance", (2, 0), 2)],
    "large numbers are exact": [
        ("add", (MOST - 1,), MOST - 1),
        ("add", (), MOST),
        ("get", (), MOST),
        ("compare_and_set", (MOST, MOST - 2), True),
        ("advance", (1, 0), MOST - 1),
        ("get_and_reset", (), MOST - 1),
    ],
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_calls_have_their_answers(orders: Any, steps: list[tuple[str, tuple[int, ...], object]]) -> None:
    for method, arguments, answer in steps:
        assert getattr(orders, method)(*arguments) == answer


def test_advancing_from_the_stores_time(orders: Any, clock: StoreClock) -> None:
    """The step counts from the value, once that is later than the time."""
    first = clock.now
    assert [orders.advance(30), orders.advance(30)] == [first, first + 30]
    clock.move(10)
    assert orders.advance(30) == first + 60
    clock.move(80)
    assert orders.advance(30) == first + 90
    clock.move(31)
    assert orders.advance(30) == first + 121


def test_advancing_never_goes_back(orders: Any, clock: StoreClock) -> None:
    first = orders.advance(30)
    clock.move(-1_000_000)
    assert [orders.advance(30), orders.advance(0)] == [first + 30, first + 30]


def test_the_floor_is_the_servers_own_time(orders: Any, redis: Redis) -> None:
    """Not the caller's: all callers have the same."""
    before: Any = redis.time()
    floor = orders.advance(0)
    after: Any = redis.time()
    assert before <= divmod(floor, 1_000_000) <= after


def test_names_and_prefixes_do_not_meet(make: Callable[..., Any]) -> None:
    make("orders").add()
    assert make("orders2").get() == 0
    assert make("orders", prefix="other").get() == 0
    assert make("orders").get() == 1


def test_repr_describes_the_counter(orders: Any) -> None:
    assert re.fullmatch(r"<(Async)?Counter '{throttle}:2:counter:orders'>", repr(orders))


def test_nothing_is_kept_for_calls_without_an_id(orders: Any, redis: Redis) -> None:
    orders.add()
    orders.advance(30)
    orders.compare_and_set(5, 6)
    assert redis.keys() == [KEY.encode()]
    assert redis.ttl(KEY) == -1


def test_each_id_is_a_call_of_its_own(make: Callable[..., Any]) -> None:
    """Of one method of one counter; nor do a name and an id run into each other."""
    counters = [make("orders"), make("orders:1"), make("or")]
    assert [it.add(5, call_id=name) for it in counters for name in ("a", "1:a", "ders:1:a")] == [5, 10, 15] * 3
    assert counters[0].advance(1, 0, call_id="a") == 16
    assert counters[0].get_and_reset(call_id="a") == 16


def test_an_id_is_forgotten_after_a_while(orders: Any, redis: Redis) -> None:
    orders.add(call_id="a")
    [remembered] = set(redis.keys()) - {KEY.encode()}
    assert 0 < redis.pttl(remembered) <= 600_000
    redis.delete(remembered)
    assert orders.add(call_id="a") == 2


def test_both_keys_of_a_call_are_on_one_shard(redis: Redis) -> None:
    """For any form of name and id."""
    count, *rest = Counter(redis, "{a}")._change("add", "{b}", 1).arguments
    assert count == 2
    assert len({key_slot(str(key).encode()) for key in rest[:2]}) == 1


@pytest.fixture
def resent(resending: Resending, redis: Redis) -> Counter:
    """A counter of 3; redis-py sends each of its calls once more, as after a lost reply."""
    Counter(redis, "orders").add(3)
    return Counter(resending, "orders")


@pytest.mark.parametrize(("call_id", "value"), [(None, 5), ("a", 4)])
def test_a_lost_reply(resent: Counter, call_id: str | None, value: int) -> None:
    """Without an id, a retry of redis-py counts again."""
    assert resent.add(1, call_id=call_id) == value
    assert resent.get() == value


@pytest.mark.parametrize(("call_id", "said"), [(None, 0), ("a", 3)])
def test_a_lost_reply_to_a_reset(resent: Counter, call_id: str | None, said: int) -> None:
    """Without an id, the value is lost."""
    assert resent.get_and_reset(call_id=call_id) == said
    assert resent.get() == 0


@pytest.mark.parametrize("foreign", ["text", ["a", "list"]])
def test_a_key_that_holds_something_else_is_left_alone(orders: Any, redis: Redis, foreign: str | list[str]) -> None:
    redis.set(KEY, foreign) if isinstance(foreign, str) else redis.rpush(KEY, *foreign)
    for call in (orders.get, orders.add, orders.get_and_reset, lambda: orders.compare_and_set(0, 1)):
        with pytest.raises(ResponseError, match=r"something else|WRONGTYPE"):
            call()
    assert redis.exists(KEY)


def test_a_full_server_can_be_reset(orders: Any, redis: Any) -> None:
    """And refuses the rest, leaving the value as it is."""
    orders.add(5)
    orders.advance(0, 0)
    redis.config_set("maxmemory", "1")
    redis.config_set("maxmemory-policy", "noeviction")
    try:
        with pytest.raises(ResponseError, match="maxmemory"):
            orders.add()
        with pytest.raises(ResponseError, match="maxmemory"):
            orders.advance(1)
        assert orders.get_and_reset(call_id="a") == 5
    finally:
        redis.config_set("maxmemory", "0")
    assert orders.get() == 0


amounts = st.integers(-3, 3) | st.sampled_from((MOST, -MOST, MOST - 1))
ids = st.sampled_from((None, None, "a", "b"))


class CounterMachine(RuleBasedStateMachine):
    """Several clients of one counter; the model is a number and the replies to the calls with an id."""

    client: ClassVar[Redis]

    def __init__(self) -> None:
        super().__init__()
        self.client.flushall()
        self.clients = [Counter(self.client, "orders"), Counter(self.client, "orders")]
        self.value = 0
        self.replies: dict[tuple[str, str], int] = {}

    def _expect(self, verb: str, call_id: str | None, call: Callable[[], int], reply: int, value: int) -> None:
        if call_id is not None and (verb, call_id) in self.replies:
            assert call() == self.replies[verb, call_id]
        elif not -MOST <= value <= MOST:
            with pytest.raises(OverflowError):
                call()
        else:
            assert call() == reply
            self.value = value
            if call_id is not None:
                self.replies[verb, call_id] = reply

    @rule(who=st.integers(0, 1), amount=amounts, call_id=ids)
    def add(self, who: int, amount: int, call_id: str | None) -> None:
        new = self.value + amount
        self._expect("add", call_id, lambda: self.clients[who].add(amount, call_id=call_id), new, new)

    @rule(who=st.integers(0, 1), step=st.integers(0, 3) | st.just(MOST), floor=amounts, call_id=ids)
    def advance(self, who: int, step: int, floor: int, call_id: str | None) -> None:
        new = max(floor, self.value + step)
        self._expect("advance", call_id, lambda: self.clients[who].advance(step, floor, call_id=call_id), new, new)

    @rule(who=st.integers(0, 1), off=st.sampled_from((0, 0, 1)), new=amounts, call_id=ids)
    def compare_and_set(self, who: int, off: int, new: int, call_id: str | None) -> None:
        expected = self.value + off if self.value < MOST else self.value
        reply, value = (1, new) if expected == self.value else (0, self.value)

        def call() -> int:
            return self.clients[who].compare_and_set(expected, new, call_id=call_id)

        self._expect("compare_and_set", call_id, call, reply, value)

    @rule(who=st.integers(0, 1), call_id=ids)
    def get_and_reset(self, who: int, call_id: str | None) -> None:
        self._expect("reset", call_id, lambda: self.clients[who].get_and_reset(call_id=call_id), self.value, 0)

    @rule(everything=st.sampled_from((False, False, True)))
    def forget(self, everything: bool) -> None:
        """The server restarts, empty or not."""
        self.client.script_flush()
        if everything:
            self.client.flushall()
            self.value = 0
            self.replies.clear()

    @invariant()
    def the_store_is_as_the_model(self) -> None:
        assert self.clients[0].get() == self.value
        assert bool(self.client.exists(KEY)) == (self.value != 0)
        assert len(set(self.client.keys()) - {KEY.encode()}) == len(self.replies)


def test_any_sequence_of_calls(redis: Redis) -> None:
    class OnThisServer(CounterMachine):
        client = redis

    run_machine(OnThisServer, examples=30, steps=30)
