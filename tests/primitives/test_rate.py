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
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from redis import Redis
from redis.exceptions import ResponseError

from celery_throttle.core.rates import Rate, read_rates
from celery_throttle.errors import ConfigurationError
from celery_throttle.primitives import Decision, RateLimiter, rate
from tests.primitives.faults import Resending, StoreClock
from tests.support.machines import run_machine

SECOND = 1_000_000
DAY = 86400 * SECOND
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
KEY = "{throttle}:3:rate:api"

# -- valid rates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "is_", "seconds"),
    [
        ("10/s", Rate(10, "s"), 1),
        (" 100 / m ", Rate(100, "m"), 60),
        ("5000/h", Rate(5000, "h"), 3600),
        ("1/d", Rate(1, "d"), 86400),
    ],
)
def test_a_rate_is_read_as_it_is_written(text: str, is_: Rate, seconds: int) -> None:
    read = Rate.parse(text)
    assert {read, is_} == {is_}
    assert str(read) == text.replace(" ", "")
    assert eval(repr(read)) == read
    assert read_rates(text) == read_rates(read) == (read,)
    assert read_rates([text, Rate(5, "h")]) == (read, Rate(5, "h"))
    assert read.period == seconds * SECOND
    assert Rate(7, read.unit).spacing(7) == (read.period, 0)
    assert Rate(7, read.unit).spacing(2) == (2 * read.period // 7, 2 * read.period % 7), "whole microseconds, the rest"


def counting(count: Any) -> Rate:
    return Rate(count, "m")


@pytest.mark.parametrize(
    ("make", "given", "said"),
    [
        (Rate.parse, "100/min", "got '100/min': write '100/m'"),
        (Rate.parse, "100 per Hour", "got '100 per Hour': write '100/h'"),
        (Rate.parse, "0/m", "got '0/m': write a number from 1 to 1000000000000"),
        (Rate.parse, "1000000000001/s", "got '1000000000001/s': write a number from 1 to 1000000000000"),
        *(
            (Rate.parse, given, f"got {given!r}: write '10/s', '100/m', '5000/h' or '1/d'")
            for given in ("100/w", "5/month", "100/", "-5/m", "0.5/s", "many/s", "", "100", 10, None)
        ),
        *(
            (counting, given, f"count must be a whole number from 1 to 1000000000000, got {given!r}")
            for given in (0, -1, 1.0, True, "5", None)
        ),
        *((read_rates, given, "write '10/s'") for given in ([], ["1/s"] * 9, [5], {"1/s"}, 5, ("1/s", "x"))),
    ],
)
def test_impossible_rate_is_refused_with_a_hint(make: Callable[[Any], object], given: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        make(given)


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


#: Rates with bursts, and calls of `acquire`: microseconds since the call before, cost, seconds until it may start,
#: and the starts that remain. The machine below tries many more.
ACQUIRED: dict[str, tuple[Any, Any, list[tuple[int, int, float, int]]]] = {
    "starts are evenly spaced": ("100/m", 1, [(0, 1, 0.0, 0), (0, 1, 0.6, 0), (599_999, 1, 0.000001, 0), (1, 1, 0, 0)]),
    "a late start counts from its own time": ("100/m", 1, [(0, 1, 0, 0), (600_001, 1, 0, 0), (0, 1, 0.6, 0)]),
    "a burst after a pause, which does not pile up": (
        "100/m", 3, [(0, 1, 0, 2), (3600 * SECOND, 1, 0, 2), (0, 1, 0, 1), (0, 1, 0, 0), (0, 1, 0.6, 0)],
    ),
    "a cost counts as so many": ("100/m", 5, [(0, 3, 0, 2), (0, 3, 0.6, 2), (0, 2, 0, 0), (3 * 600_000, 3, 0, 0)]),
    "a cost beyond the burst waits for all and delays the next": (
        "100/m", 2, [(0, 5, 0, 0), (0, 1, 2.4, 0), (2_400_000, 1, 0, 0), (0, 5, 1.2, 0)],
    ),
    "a start that one rate refuses counts for none": (
        ["2/s", Rate(3, "h")], [2, 3],
        [(0, 1, 0, 1), (0, 1, 0, 0), (0, 1, 0.5, 0), (SECOND, 1, 0, 0), (0, 1, 1199.0, 0)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("rates", "burst", "calls"), ACQUIRED.values(), ids=ACQUIRED)
def test_calls_are_allowed_or_come_again(
    make: Callable[..., Any], clock: StoreClock, rates: Any, burst: Any, calls: list[tuple[int, int, float, int]]
) -> None:
    api = make("api", rates, burst=burst)
    for moved, cost, wait, remaining in calls:
        clock.move(moved)
        assert (api.peek() if cost == 1 else api.peek(cost)).retry_after == wait
        decision = api.acquire(cost)
        assert decision == Decision(allowed=not wait, retry_after=wait, remaining=remaining)
        assert bool(decision) is (wait == 0)


def test_each_rate_counts_a_start_when_it_happens(make: Callable[..., Any], clock: StoreClock) -> None:
    """Not when it was booked: the first rate was idle by then, and its five fill half a second from that start on."""
    api = make("api", ["10/s", "3/s"], burst=[1, 5])
    assert starts(api, clock, 2, cost=5) == [0, 1_666_667]
    assert starts(api, clock, 1) == [2_166_667]


@pytest.mark.parametrize(("max_wait", "booked"), [(0, False), (0.499999, False), (0.5, True), (float("inf"), True)])
def test_no_longer_than_one_can_wait(
    make: Callable[..., Any], clock: StoreClock, max_wait: float, booked: bool
) -> None:
    """A refused one has the time of its start, and books nothing."""
    api = make("api", "2/s")
    assert api.reserve(max_wait=0)
    slot = api.reserve(max_wait=max_wait)
    assert (slot.booked, bool(slot), slot.delay) == (booked, booked, 0.5)
    assert slot.start == EPOCH + timedelta(microseconds=clock.now + 500_000)
    assert api.acquire().retry_after == (1.0 if booked else 0.5)
    assert slot.cancel() is booked


def test_booking_is_given_back_unless_it_is_forgotten(make: Callable[..., Any], redis: Redis) -> None:
    """Also by a program to which a rate was added: nothing was booked in that."""
    slot = make("api", "1/h").reserve()
    assert make("api", ["1/h", "10/d"]).cancel(slot.call_id)
    assert make("api", "1/h").peek()
    redis.delete(KEY)
    assert not slot.cancel()
    assert make("api", "1/h").peek()
    assert not redis.exists(KEY), "neither of them books"


def test_a_lost_reply(resending: Resending, redis: Redis) -> None:
    """The retry of redis-py is the same call."""
    api, looks = RateLimiter(resending, "api", "2/d"), RateLimiter(redis, "api", "2/d")
    slot = api.reserve()
    assert 43_100 < looks.peek().retry_after <= 43_200
    assert slot.cancel()
    assert looks.peek()
    assert api.acquire()


def test_another_number_keeps_the_bookings(make: Callable[..., Any], clock: StoreClock) -> None:
    """While a new version is rolled out, both share the state."""
    old, new = make("api", ["7/m", "100/h"]), make("api", ["2/m", "70/h"])
    assert starts(old, clock, 2) == [0, 36 * SECOND]
    assert starts(new, clock, 2) == [72 * SECOND, 72 * SECOND + ceil(Fraction(3600 * SECOND, 70))]
    # Parts of a microsecond: off by less than one, no more.
    assert starts(make("parts", "999983/s"), clock, 1) == [0]
    assert starts(make("parts", "3/s"), clock, 3) == [2, 333_335, 666_669]


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
    assert 50_000 < redis.pttl("{throttle}:3:rate:fast") <= 60_001
    make("api", "2/s", prefix="other").acquire()
    assert set(redis.keys()) == {
        b"{clock}", KEY.encode(), b"{throttle}:3:rate:fast", b"{other}:3:rate:api",
    }  # fmt: skip
    assert redis.memory_usage(KEY) < 300


def test_as_much_as_can_be(make: Callable[..., Any], clock: StoreClock) -> None:
    """Ten years ahead are still exact, and further ahead nothing is booked."""
    api = make("api", "1/d", burst=3649)
    assert starts(api, clock, 2, cost=3649) == [0, 3649 * DAY]
    for booked, days in ((True, 3650), (False, 3651), (False, 3651)):
        slot = api.reserve()
        assert (slot.booked, slot.start) == (booked, EPOCH + timedelta(days=days, microseconds=clock.now))


def test_repr_describes_the_rate(make: Callable[..., Any]) -> None:
    said = repr(make("api", ["2/s", "7/m"], burst=[1, 5]))
    assert re.fullmatch(r"<(Async)?RateLimiter '{throttle}:3:rate:api' 2/s burst 1, 7/m burst 5>", said)
    slot = make("api", "2/s").reserve()
    assert re.fullmatch(r"(Async)?Reservation\(booked=True, start=datetime.*, delay=0.0\)", repr(slot))


@pytest.mark.usefixtures("clock")
def test_a_full_server_takes_a_reservation_back(make: Callable[..., Any], full: Callable[[], None]) -> None:
    """It books none."""
    api = make("api", ["2/s", "7/m"])
    slot = api.reserve()
    full()
    with pytest.raises(ResponseError, match="maxmemory"):
        api.reserve()
    assert slot.cancel()
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


class RateMachine(RuleBasedStateMachine):
    """One limiter, on a clock that the machine sets."""

    client: ClassVar[Redis]
    clock: ClassVar[StoreClock]

    def __init__(self) -> None:
        super().__init__()
        self.client.flushall()
        self.clock.set(1_800_000_000_000_000)
        #: the time and the cost of each start that was given out
        self.given: dict[str, tuple[int, int]] = {}
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
        self.limiter = RateLimiter(self.client, "api", [each for each, _ in rates], burst=[each for _, each in rates])
        self._forgotten()

    @rule(cost=st.integers(1, 6), again=st.booleans())
    def acquire(self, cost: int, again: bool) -> None:
        call_id = self._call_id(again)
        now, model = self.clock.now, self.model
        decision = self.limiter.acquire(cost, call_id=call_id)
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

    @rule(cost=st.integers(1, 6), wait=st.sampled_from((None, 0, 1, 60)), again=st.booleans())
    def reserve(self, cost: int, wait: float | None, again: bool) -> None:
        call_id = self._call_id(again)
        now, model = self.clock.now, self.model
        slot = self.limiter.reserve(cost, wait, call_id=call_id)
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

    @rule(cost=st.integers(1, 6))
    def peek(self, cost: int) -> None:
        now, model = self.clock.now, self.model
        start, booked = model.plan(now, cost)
        expected = Decision(start == now, (start - now) / SECOND, model.left(now, booked))
        assert self.limiter.peek(cost) == expected

    @precondition(lambda self: self.given)
    @rule(pick=st.integers(0, 2))
    def cancel(self, pick: int) -> None:
        call_id = list(self.given)[-1 - pick % len(self.given)]
        model = self.model
        assert self.limiter.cancel(call_id) == (call_id == model.last)
        if call_id == model.last and model.start is not None:
            model.booked, model.start = model.before, None
            self.given[call_id] = (self.given[call_id][0], 0)

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
        # Starts before and after it cannot be compared.
        self.given = {call_id: (at, 0) for call_id, (at, _) in self.given.items()}

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
        starts = [(at, cost) for at, cost in self.given.values() if cost]
        assert starts == sorted(starts, key=lambda start: start[0])
        most = max((cost for _, cost in starts), default=0)
        for each, burst in self.rates:
            for first, _ in starts:
                within = sum(cost for at, cost in starts if 0 <= at - first < each.period)
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
        self.given[call_id] = (start, cost)

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
