"""So many per second, minute, hour or day."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from fractions import Fraction
from functools import partial
from math import ceil
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from redis import Redis
from redis.exceptions import ResponseError

from celery_throttle.core.rates import Rate, read_rates
from celery_throttle.errors import ConfigurationError
from celery_throttle.primitives import Decision, RateLimiter, rate
from tests.primitives.faults import StoreClock
from tests.primitives.resending import Resending
from tests.support.machines import run_machine

SECOND = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
KEY = "{throttle}:2:rate:api"

# -- valid rates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["10/s", "100/m", "5000/h", "1/d"])
def test_a_rate_is_read_as_it_is_written(text: str) -> None:
    read = Rate.parse(text)
    assert str(read) == text
    assert eval(repr(read)) == read


def test_a_rate_has_a_count_and_a_unit() -> None:
    assert Rate.parse(" 100 / m ") == Rate(100, "m")
    assert {Rate(100, "m"), Rate.parse("100/m")} == {Rate(100, "m")}


@pytest.mark.parametrize(("unit", "seconds"), [("s", 1), ("m", 60), ("h", 3600), ("d", 86400)])
def test_how_long_so_many_take(unit: Any, seconds: int) -> None:
    """Whole microseconds, and the rest in parts of which `count` are one."""
    period = seconds * SECOND
    assert Rate(7, unit).period == period
    assert Rate(7, unit).spacing(7) == (period, 0)
    assert Rate(7, unit).spacing(2) == (2 * period // 7, 2 * period % 7)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("100/min", "got '100/min': write '100/m'"),
        ("100 per Hour", "got '100 per Hour': write '100/h'"),
        ("100/w", "got '100/w': write '10/s', '100/m'"),
        ("5/month", "got '5/month': write '10/s'"),
        ("100/", "got '100/': write '10/s'"),
        ("0/m", "got '0/m': write a number from 1 to 1000000000000"),
        ("-5/m", "got '-5/m': write '10/s'"),
        ("0.5/s", "got '0.5/s': write '10/s'"),
        ("many/s", "got 'many/s': write '10/s'"),
        ("", "got '': write '10/s'"),
        ("100", "got '100': write '10/s'"),
        ("1000000000001/s", "got '1000000000001/s': write a number from 1 to 1000000000000"),
        (10, "got 10: write '10/s'"),
        (None, "got None: write '10/s'"),
    ],
)
def test_impossible_rate_is_refused_with_a_hint(text: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        Rate.parse(text)


@pytest.mark.parametrize("count", [0, -1, 1.0, True, "5", None])
def test_a_count_is_a_whole_number_of_one_or_more(count: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"count must be a whole number from 1 to .*, got {count!r}"):
        Rate(count, "m")


def test_one_rate_or_several() -> None:
    assert read_rates("10/s") == read_rates(Rate(10, "s")) == (Rate(10, "s"),)
    assert read_rates(["10/s", Rate(5, "h")]) == (Rate(10, "s"), Rate(5, "h"))


@pytest.mark.parametrize("rates", [[], ["1/s"] * 9, [5], {"1/s"}, 5, ("1/s", "x")])
def test_rates_that_cannot_work(rates: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"write '10/s'"):
        read_rates(rates)


# -- the limiter ------------------------------------------------------------------------------------------------------


@pytest.fixture
def make(make: Callable[..., Any]) -> Callable[..., Any]:
    """Makes limiters, of either side."""
    return partial(make, "RateLimiter")


@pytest.fixture
def clock(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> StoreClock:
    return StoreClock(redis, rate, monkeypatch)


def starts(limiter: RateLimiter, clock: StoreClock, count: int, cost: int = 1) -> list[int]:
    """Book that many and return when they start, in microseconds from now."""
    slots = [limiter.reserve(cost) for _ in range(count)]
    return [(slot.start - EPOCH) // timedelta(microseconds=1) - clock.now for slot in slots]


def test_starts_are_evenly_spaced(make: Callable[..., Any], clock: StoreClock) -> None:
    api = make("api", "100/m")
    assert api.acquire() == Decision(allowed=True, retry_after=0.0, remaining=0)
    assert api.acquire() == Decision(allowed=False, retry_after=0.6, remaining=0)
    clock.move(599_999)
    assert api.acquire() == Decision(allowed=False, retry_after=0.000001, remaining=0)
    clock.move(1)
    assert api.acquire().allowed


@pytest.mark.parametrize("late", [1, 2, 599_999, 10**9])
def test_late_start_counts_from_its_own_time(make: Callable[..., Any], clock: StoreClock, late: int) -> None:
    """Also if it is one microsecond."""
    api = make("api", "100/m")
    api.acquire()
    clock.move(600_000 + late)
    assert api.acquire().allowed
    assert api.acquire().retry_after == 0.6


def test_a_burst_after_a_pause(make: Callable[..., Any], clock: StoreClock) -> None:
    """Then evenly spaced again; unused starts do not pile up beyond it."""
    api = make("api", "100/m", burst=3)
    for _ in range(2):
        assert [api.acquire().remaining for _ in range(3)] == [2, 1, 0]
        assert api.acquire() == Decision(allowed=False, retry_after=0.6, remaining=0)
        clock.move(600_000)
        assert api.acquire().allowed
        assert not api.acquire().allowed
        clock.move(3600 * SECOND)


def test_a_cost_counts_as_so_many(make: Callable[..., Any], clock: StoreClock) -> None:
    api = make("api", "100/m", burst=5)
    assert api.acquire(3).remaining == 2
    assert api.acquire(3) == Decision(allowed=False, retry_after=0.6, remaining=2)
    assert api.acquire(2).remaining == 0
    clock.move(3 * 600_000)
    assert api.acquire(3).allowed


def test_cost_beyond_the_burst_waits_for_all_and_delays_the_next(make: Callable[..., Any], clock: StoreClock) -> None:
    api = make("api", "100/m", burst=2)
    assert api.acquire(5) == Decision(allowed=True, retry_after=0.0, remaining=0)
    assert api.acquire().retry_after == pytest.approx(4 * 0.6)
    clock.move(4 * 600_000)
    assert api.acquire().allowed
    assert api.acquire(5).retry_after == pytest.approx(2 * 0.6)


def test_all_rates_or_none(make: Callable[..., Any], clock: StoreClock) -> None:
    api = make("api", ["2/s", Rate(3, "h")], burst=[2, 3])
    assert api.acquire().remaining == 1
    assert api.acquire().remaining == 0
    # Refused by the first rate; the second has not counted it.
    assert api.acquire() == Decision(allowed=False, retry_after=0.5, remaining=0)
    clock.move(SECOND)
    assert api.acquire().remaining == 0
    assert api.acquire() == Decision(allowed=False, retry_after=1199.0, remaining=0)
    assert make("api", "2/s", burst=2).peek().remaining == 1


def test_each_rate_counts_a_start_when_it_happens(make: Callable[..., Any], clock: StoreClock) -> None:
    """Not when it was booked: the first rate was idle by then, and its five fill half a second from that start on."""
    api = make("api", ["10/s", "3/s"], burst=[1, 5])
    assert starts(api, clock, 2, cost=5) == [0, 1_666_667]
    assert starts(api, clock, 1) == [2_166_667]


def test_reservations_are_first_come_first_served(make: Callable[..., Any], clock: StoreClock) -> None:
    api = make("api", "2/s")
    assert starts(api, clock, 4) == [0, 500_000, 1_000_000, 1_500_000]
    clock.move(600_000)
    assert api.acquire().retry_after == 1.4


def test_reservation_has_its_start_time(make: Callable[..., Any], clock: StoreClock) -> None:
    api = make("api", "2/s")
    api.reserve()
    slot = api.reserve()
    assert slot
    assert slot.booked
    assert slot.start == EPOCH + timedelta(microseconds=clock.now + 500_000)
    assert slot.delay == 0.5


@pytest.mark.parametrize(("max_wait", "booked"), [(0, False), (0.499999, False), (0.5, True), (float("inf"), True)])
@pytest.mark.usefixtures("clock")
def test_no_longer_than_one_can_wait(make: Callable[..., Any], max_wait: float, booked: bool) -> None:
    """A refused one has the time of its start, and books nothing."""
    api = make("api", "2/s")
    assert api.reserve(max_wait=0)
    slot = api.reserve(max_wait=max_wait)
    assert (slot.booked, bool(slot), slot.delay) == (booked, booked, 0.5)
    assert api.acquire().retry_after == (1.0 if booked else 0.5)
    if not booked:
        assert not slot.cancel()


@pytest.mark.usefixtures("clock")
def test_the_last_reservation_can_be_given_back(make: Callable[..., Any]) -> None:
    """As if it had never been, for each rate; twice is once."""
    api = make("api", ["2/s", "7/m"], burst=[3, 1])
    first = api.reserve()
    before = [api.peek(cost) for cost in (1, 2, 5)]
    last = api.reserve(4)
    assert last.cancel()
    assert [api.peek(cost) for cost in (1, 2, 5)] == before
    assert last.cancel()
    assert not first.cancel()
    assert [api.peek(cost) for cost in (1, 2, 5)] == before


def test_a_limiter_with_one_more_rate_can_give_it_back(make: Callable[..., Any]) -> None:
    """As the program is after a rate was added: nothing was booked in that."""
    slot = make("api", "1/h").reserve()
    assert make("api", ["1/h", "10/d"]).cancel(slot.call_id)
    assert make("api", "1/h").peek()


def test_forgotten_booking_cannot_be_given_back(make: Callable[..., Any], redis: Redis) -> None:
    slot = make("api", "2/s").reserve()
    redis.delete(KEY)
    assert not slot.cancel()
    assert not redis.exists(KEY)


@pytest.mark.usefixtures("clock")
def test_peeking_changes_nothing(make: Callable[..., Any], redis: Redis) -> None:
    api = make("api", "2/s", burst=2)
    assert [api.peek(), api.peek(2)] == [Decision(allowed=True, retry_after=0.0, remaining=2)] * 2
    assert not redis.exists(KEY)
    api.acquire(2)
    assert api.peek() == Decision(allowed=False, retry_after=0.5, remaining=0)
    assert api.peek(2).retry_after == 1.0


def test_a_lost_reply(resending: Resending, redis: Redis, clock: StoreClock) -> None:
    """The retry of redis-py is the same call."""
    api, looks = RateLimiter(resending, "api", "2/s"), RateLimiter(redis, "api", "2/s")
    looks.reserve()
    slot = api.reserve()
    assert slot.delay == 0.5
    assert looks.peek().retry_after == 1.0
    assert slot.cancel()
    assert looks.peek().retry_after == 0.5
    clock.move(SECOND)
    assert api.acquire()


def test_a_clock_that_is_set_back_stops_nothing(make: Callable[..., Any], clock: StoreClock) -> None:
    """Bookings move with it; also those that can be given back."""
    api = make("api", ["2/s", "1000/h"], burst=[2, 1000])
    assert starts(api, clock, 4) == [0, 0, 500_000, SECOND]
    clock.move(-3600 * SECOND)
    assert api.peek().retry_after == 1.5
    last = api.reserve()
    assert last.delay == 1.5
    assert last.cancel()
    assert api.peek().retry_after == 1.5
    clock.move(3 * SECOND)
    assert api.acquire().remaining == 1


def test_clock_set_back_stops_no_refused_caller(make: Callable[..., Any], clock: StoreClock) -> None:
    """A refused caller may come again at the time that it got."""
    api = make("api", "2/s", burst=2)
    slots = [api.reserve() for _ in range(2)]
    clock.move(-3600 * SECOND)
    assert api.acquire().retry_after == 0.5
    clock.move(SECOND // 4)
    assert api.acquire().retry_after == 0.25
    assert slots[1].cancel()
    assert api.acquire()
    clock.move(SECOND // 4)
    assert api.acquire()


def test_another_number_keeps_the_bookings(make: Callable[..., Any], clock: StoreClock) -> None:
    """While a new version is rolled out, both share the state."""
    old, new = make("api", ["7/m", "100/h"]), make("api", ["2/m", "70/h"])
    assert starts(old, clock, 2) == [0, 36 * SECOND]
    assert starts(new, clock, 2) == [72 * SECOND, 72 * SECOND + ceil(Fraction(3600 * SECOND, 70))]


def test_parts_of_a_microsecond_of_another_number(make: Callable[..., Any], clock: StoreClock) -> None:
    """Off by less than a microsecond, no more."""
    assert starts(make("api", "999983/s"), clock, 1) == [0]
    assert starts(make("api", "3/s"), clock, 3) == [2, 333_335, 666_669]


def test_the_time_is_the_servers_own(make: Callable[..., Any], redis: Redis) -> None:
    before: Any = redis.time()
    start = make("api", "2/s").reserve().start
    after: Any = redis.time()
    assert before <= divmod((start - EPOCH) // timedelta(microseconds=1), SECOND) <= after


@pytest.mark.usefixtures("clock")
def test_the_key_goes_by_itself(make: Callable[..., Any], redis: Any) -> None:
    """A minute after everything booked is used up; a rate set on another prefix or name has its own."""
    api = make("api", ["2/s", "1/h", "3/s"])
    api.acquire()
    assert 3_600_000 < redis.pttl(KEY) <= 3_660_000
    make("fast", "1000/s").acquire()
    assert 50_000 < redis.pttl("{throttle}:2:rate:fast") <= 60_001
    make("api", "2/s", prefix="other").acquire()
    assert set(redis.keys()) == {
        b"{clock}", KEY.encode(), b"{throttle}:2:rate:fast", b"{other}:2:rate:api",
    }  # fmt: skip
    assert redis.memory_usage(KEY) < 300


def test_as_much_as_can_be(make: Callable[..., Any], clock: StoreClock) -> None:
    """Ten years ahead are still exact, and further ahead nothing is booked."""
    api = make("api", "1/d", burst=3649)
    day = 86400 * SECOND
    assert starts(api, clock, 2, cost=3649) == [0, 3649 * day]
    for booked, days in ((True, 3650), (False, 3651), (False, 3651)):
        slot = api.reserve()
        assert (slot.booked, slot.start) == (booked, EPOCH + timedelta(days=days, microseconds=clock.now))


def test_repr_describes_the_rate(make: Callable[..., Any]) -> None:
    said = repr(make("api", ["2/s", "7/m"], burst=[1, 5]))
    assert re.fullmatch(r"<(Async)?RateLimiter '{throttle}:2:rate:api' 2/s burst 1, 7/m burst 5>", said)
    slot = make("api", "2/s").reserve()
    assert re.fullmatch(r"(Async)?Reservation\(booked=True, start=datetime.*, delay=0.0\)", repr(slot))


def test_a_decision_is_true_if_it_allows() -> None:
    assert Decision(allowed=True, retry_after=0.0, remaining=0)
    assert not Decision(allowed=False, retry_after=0.0, remaining=5)


@pytest.mark.usefixtures("clock")
def test_a_full_server_takes_a_reservation_back(make: Callable[..., Any], redis: Any) -> None:
    """It books none."""
    api = make("api", ["2/s", "7/m"])
    slot = api.reserve()
    redis.config_set("maxmemory", "1")
    redis.config_set("maxmemory-policy", "noeviction")
    try:
        with pytest.raises(ResponseError, match="maxmemory"):
            api.reserve()
        assert slot.cancel()
    finally:
        redis.config_set("maxmemory", "0")
    assert api.peek().allowed


# -- any sequence of calls --------------------------------------------------------------------------------------------


@dataclass
class Model:
    """The generic cell rate algorithm, in fractions."""

    rates: list[tuple[Fraction, int]]  # time per start (us), burst
    booked: list[Fraction] = field(default_factory=list)
    before: list[Fraction] = field(default_factory=list)
    seen: int = 0
    last: str = ""
    start: int | None = None

    def __post_init__(self) -> None:
        self.booked = self.before = [Fraction(0)] * len(self.rates)

    def plan(self, now: int, cost: int) -> tuple[int, list[Fraction]]:
        """Return when it starts, and until when everything is booked if the clock was set back."""
        back = max(self.seen - now, 0)
        booked = [max(until - back, Fraction(0)) for until in self.booked]
        start = now
        for (each, burst), until in zip(self.rates, booked, strict=True):
            start = max(start, ceil(self.base(until, now) + each * (cost - max(burst, cost))))
        return start, booked

    @staticmethod
    def base(until: Fraction, start: int) -> Fraction:
        """A start is the first microsecond that is not too early; the part of one by which it is late is not lost."""
        return until if until > start - 1 else Fraction(start)

    def book(self, now: int, cost: int, call_id: str) -> int:
        start, self.before = self.plan(now, cost)
        self.booked = [
            self.base(until, start) + each * cost for (each, _), until in zip(self.rates, self.before, strict=True)
        ]
        self.seen, self.last, self.start = now, call_id, start
        return start

    def refuse(self, now: int) -> None:
        """A refused caller comes nearer to its start from then on, though the clock was set back."""
        back = self.seen - now
        if back > 0:
            self.booked, self.before = (
                [max(until - back, Fraction(0)) for until in each] for each in (self.booked, self.before)
            )
            self.seen, self.start = now, None if self.start is None else self.start - back

    def left(self, now: int, booked: list[Fraction]) -> int:
        ahead = [
            burst - max(until - now, Fraction(0)) / each
            for (each, burst), until in zip(self.rates, booked, strict=True)
        ]
        return max(min(int(units // 1) for units in ahead), 0)


@dataclass
class Start:
    """One start that was given out."""

    at: int
    cost: int


class RateMachine(RuleBasedStateMachine):
    """Several clients of one limiter, on a clock that the machine sets."""

    client: ClassVar[Redis]
    clock: ClassVar[StoreClock]

    def __init__(self) -> None:
        super().__init__()
        self.client.flushall()
        self.clock.set(1_800_000_000_000_000)
        self.given: dict[str, Start] = {}
        self.numbers = 0

    @initialize(
        rates=st.lists(
            st.tuples(
                st.builds(Rate, st.sampled_from((1, 3, 7, 100, 999_983)), st.sampled_from(("s", "m"))),
                st.integers(1, 4),
            ),
            min_size=1,
            max_size=3,
        )
    )
    def declare(self, rates: list[tuple[Rate, int]]) -> None:
        self.rates = rates
        self.limiters = [
            RateLimiter(self.client, "api", [each for each, _ in rates], burst=[burst for _, burst in rates])
            for _ in range(2)
        ]
        self._forgotten()

    @rule(who=st.integers(0, 1), cost=st.integers(1, 6), again=st.booleans())
    def acquire(self, who: int, cost: int, again: bool) -> None:
        call_id = self._call_id(again)
        now, model = self.clock.now, self.model
        decision = self.limiters[who].acquire(cost, call_id=call_id)
        if call_id == model.last and model.start is not None:
            wait = max(self._started() - now, 0)
            assert (decision.allowed, decision.retry_after) == (wait == 0, wait / SECOND)
            return
        start, booked = model.plan(now, cost)
        assert decision.allowed == (start == now)
        assert decision.retry_after == (start - now) / SECOND
        if decision.allowed:
            self._given(call_id, model.book(now, cost, call_id), cost)
            booked = model.booked
        else:
            model.refuse(now)
        assert decision.remaining == model.left(now, booked)

    @rule(who=st.integers(0, 1), cost=st.integers(1, 6), wait=st.sampled_from((None, 0, 1, 60)), again=st.booleans())
    def reserve(self, who: int, cost: int, wait: float | None, again: bool) -> None:
        call_id = self._call_id(again)
        now, model = self.clock.now, self.model
        slot = self.limiters[who].reserve(cost, wait, call_id=call_id)
        if call_id == model.last and model.start is not None:
            expected = self._started()
            assert slot.booked == (wait is None or expected - now <= wait * SECOND)
        else:
            expected, _ = model.plan(now, cost)
            assert slot.booked == (wait is None or expected - now <= wait * SECOND)
            if slot.booked:
                self._given(call_id, model.book(now, cost, call_id), cost)
            else:
                model.refuse(now)
        assert slot.start == EPOCH + timedelta(microseconds=expected)
        assert slot.delay == max(expected - now, 0) / SECOND

    @rule(who=st.integers(0, 1), cost=st.integers(1, 6))
    def peek(self, who: int, cost: int) -> None:
        now, model = self.clock.now, self.model
        start, booked = model.plan(now, cost)
        expected = Decision(start == now, (start - now) / SECOND, model.left(now, booked))
        assert self.limiters[who].peek(cost) == expected

    @precondition(lambda self: self.given)
    @rule(who=st.integers(0, 1), pick=st.integers(0, 2))
    def cancel(self, who: int, pick: int) -> None:
        call_id = list(self.given)[-1 - pick % len(self.given)]
        model = self.model
        assert self.limiters[who].cancel(call_id) == (call_id == model.last)
        if call_id == model.last and model.start is not None:
            model.booked, model.start = model.before, None
            self.given[call_id].cost = 0

    @rule(share=st.sampled_from((0, 1, 2, 5, 10, 100)), rate=st.integers(0, 2), off=st.integers(-1, 1))
    def time_passes(self, share: int, rate: int, off: int) -> None:
        """Up to just before, exactly, or just after a multiple of a rate's spacing."""
        each, _ = self.model.rates[rate % len(self.rates)]
        self.clock.move(max(ceil(each * share / 2) + off, 0))

    @rule(cost=st.integers(1, 6), off=st.sampled_from((-1, 0, 1)))
    def until_it_is_due(self, cost: int, off: int) -> None:
        """To the microsecond at which a start is due, or one next to it."""
        start, _ = self.model.plan(self.clock.now, cost)
        self.clock.move(max(start + off - self.clock.now, 0))

    @rule(seconds=st.sampled_from((1, 3600)))
    def the_clock_is_set_back(self, seconds: int) -> None:
        self.clock.move(-seconds * SECOND)
        for start in self.given.values():
            start.cost = 0  # starts before and after it cannot be compared

    @rule(everything=st.sampled_from((False, False, True)))
    def forget(self, everything: bool) -> None:
        """The server restarts, empty or not."""
        self.client.script_flush()
        if everything:
            self.client.delete(KEY)
            self._forgotten()

    @invariant()
    def no_more_than_the_rates_allow(self) -> None:
        """In any period of any rate, the first moment included and the last one not."""
        starts = [start for start in self.given.values() if start.cost]
        assert [start.at for start in starts] == sorted(start.at for start in starts)
        most = max((start.cost for start in starts), default=0)
        for each, burst in self.rates if starts else ():
            for first in starts:
                within = sum(start.cost for start in starts if 0 <= start.at - first.at < each.period)
                assert within <= each.count + max(burst, most) - 1

    @invariant()
    def there_is_one_key_and_it_expires(self) -> None:
        assert set(self.client.keys()) <= {b"{clock}", KEY.encode()}
        assert self.client.ttl(KEY) != -1

    def _started(self) -> int:
        """When the last booking starts, by the clock as it is now."""
        assert self.model.start is not None
        return self.model.start - max(self.model.seen - self.clock.now, 0)

    def _given(self, call_id: str, start: int, cost: int) -> None:
        self.given.pop(call_id, None)  # an id that was cancelled or followed by others books anew
        self.given[call_id] = Start(start, cost)

    def _forgotten(self) -> None:
        self.given.clear()
        self.model = Model([(Fraction(each.period, each.count), burst) for each, burst in self.rates])

    def _call_id(self, again: bool) -> str:
        self.numbers += not again
        return f"call {self.numbers}"


def test_any_sequence_of_calls(redis: Redis, clock: StoreClock) -> None:
    class OnThisServer(RateMachine):
        client = redis

    OnThisServer.clock = clock
    run_machine(OnThisServer, examples=40, steps=40)
