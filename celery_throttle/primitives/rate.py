"""So many per second, minute, hour or day, over all processes that share a Redis."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from celery_throttle.core.rates import Rate, read_rates
from celery_throttle.core.wording import at, seconds
from celery_throttle.core.wrong_calls import constructor_tells
from celery_throttle.errors import ConfigurationError
from celery_throttle.primitives.checks import checked_client, named_key, printable, whole_number
from celery_throttle.primitives.elsewhere import RATE
from celery_throttle.store.scripts import Call, Script, execute, execute_async

if TYPE_CHECKING:
    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

__all__ = ["AsyncRateLimiter", "AsyncReservation", "Decision", "RateLimiter", "Reservation"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_SECOND = 1_000_000
#: Ten years in microseconds: what is booked stays far below 2**53, where the numbers of Lua are no longer exact.
_HORIZON = 10 * 365 * 86400 * _SECOND
_MOST = 10**12


@dataclass(frozen=True)
class Decision:
    """Whether something may start now; true if it may.

    Attributes:
        allowed: whether it may; if so, it is counted.
        retry_after: seconds after which it may if nobody else comes first; 0.0 if it may now.
        remaining: how many more may start at once.
    """

    allowed: bool
    retry_after: float
    remaining: int

    def __bool__(self) -> bool:
        return self.allowed

    def __str__(self) -> str:
        return (
            f"allowed, {self.remaining} more now" if self.allowed else f"refused, again in {seconds(self.retry_after)}"
        )


@dataclass(frozen=True)
class _Slot:
    booked: bool
    start: datetime
    delay: float
    call_id: str = field(repr=False)

    def __bool__(self) -> bool:
        return self.booked

    def __str__(self) -> str:
        return f"{'booked for' if self.booked else 'refused, next start'} {at(self.start)}, in {seconds(self.delay)}"


@dataclass(frozen=True)
class Reservation(_Slot):
    """A start that is booked; true if it is.

    Attributes:
        booked: False if it was refused, because it is later than ``max_wait`` allows.
        start: when it is, in the store's time (UTC); when it would have been if it was refused.
        delay: seconds from now until then, never below 0.0.
        call_id: its name in the store.
    """

    _limiter: RateLimiter = field(repr=False, compare=False)

    def cancel(self) -> bool:
        """Give the start back; return whether that was possible: only the last booking can be given back."""
        return self._limiter.cancel(self.call_id)


@dataclass(frozen=True)
class AsyncReservation(_Slot):
    """As `Reservation`."""

    _limiter: AsyncRateLimiter = field(repr=False, compare=False)

    async def cancel(self) -> bool:
        """As `Reservation.cancel`."""
        return await self._limiter.cancel(self.call_id)


@constructor_tells(**RATE)
class RateLimiter:
    """So many starts per second, minute, hour or day, over all processes::

        from celery_throttle.primitives import RateLimiter
        from redis import Redis

        calls = RateLimiter(Redis(), "api", "100/m", burst=10)
        if decision := calls.acquire():
            print("go on;", decision.remaining, "more may start at once")
        else:
            print("again in", decision.retry_after, "seconds")

        if slot := calls.reserve(max_wait=60):  # books a future start, so nobody overtakes
            print("sleep", slot.delay, "seconds, or use", slot.start, "as eta")
            slot.cancel()                       # not needed after all

    Without a pause, starts come evenly spaced: "100/m" is one every 0.6 seconds. After a pause up to ``burst`` may
    start at once. In any period of a rate (from a start on, up to and without the moment one period later) no more
    than ``count + burst - 1`` start. With several rates a start must be allowed by all of them, or none counts it.

    A ``cost`` counts as that many starts. If it is more than ``burst``, it has to wait until everything booked is used
    up, then starts, and what follows waits the longer; the bound above then has that cost in place of ``burst``.

    `acquire` is for who can come back later, and serves whoever comes first when a start is due. `reserve` is first
    come, first served. `AsyncRateLimiter` is the same for asyncio.

    Source: GCRA, the generic cell rate algorithm (ITU-T I.371), as in redis-cell and throttled, with reservations
    added. It keeps until when each rate is booked, exactly: in microseconds of the store's clock and fractions of one.
    Complexity: O(number of rates), one round trip, one key of about 200 bytes, which goes by itself one minute after
    everything booked is used up.

    Args:
        client: a redis-py client, decoding replies or not.
        name: what is limited; 1 to 200 printable characters. Limiters of one name and prefix share their state.
        rates: "100/m" or a `Rate`, or a list of them.
        burst: how many may start at once after a pause: one number for all rates, or a list with one for each.
        prefix: what its keys begin with.

    Raises:
        ConfigurationError: an argument cannot work.
        redis.RedisError: as the client raises it; what became of the call is then unknown.

    Warning:
        With one ``burst`` for several rates the widest spaced one decides alone: "10/s" never matters beside "5000/h",
        which is one every 0.72 seconds. Give the wider rates a burst: ``["10/s", "5000/h"], burst=[1, 500]``.

        redis-py sends a command again when its reply is lost. The same call then has the same answer if nobody else
        booked in between, else one start is wasted; none is ever given twice. A caller that tries again itself gets
        the same by giving both calls one ``call_id``.

        Refused callers of `acquire` have no place in line: beside busy callers a large cost may wait for ever.
        A reserved start is a time by the store's clock, and only a promise that the rates allow it. If that clock is
        set back, what is booked moves with it; the times already given out do not. If it is set forward, or the
        server forgets the key (restarted without persistence, failed over, evicted), one burst too many may start.
    """

    def __init__(
        self,
        client: Redis,
        name: str,
        rates: str | Rate | Sequence[str | Rate],
        *,
        burst: int | Sequence[int] = 1,
        prefix: str = "throttle",
    ) -> None:
        self._client = checked_client(client)
        self._calls = _Calls.of(name, rates, burst, prefix)

    def __repr__(self) -> str:
        return f"<RateLimiter {self._calls}>"

    def acquire(self, cost: int = 1, *, call_id: str | None = None) -> Decision:
        """Start now if all rates allow it.

        Args:
            cost: how many starts it counts as.
            call_id: the same text for a call that is sent again; by default one of its own.
        """
        return self._calls.decision(execute(self._client, self._calls.take(cost, 0, _name(call_id))))

    def peek(self, cost: int = 1) -> Decision:
        """Tell what `acquire` would decide, and count nothing."""
        return self._calls.decision(execute(self._client, self._calls.peek(cost)))

    def reserve(self, cost: int = 1, max_wait: float | None = None, *, call_id: str | None = None) -> Reservation:
        """Book the first start that all rates allow.

        Args:
            cost: how many starts it counts as.
            max_wait: book none that is more than so many seconds away; by default none beyond ten years.
            call_id: the same text for a call that is sent again; by default one of its own.
        """
        call_id = _name(call_id)
        raw = execute(self._client, self._calls.take(cost, _microseconds(max_wait), call_id))
        return Reservation(*_slot(raw), call_id, self)

    def cancel(self, call_id: str) -> bool:
        """Give back the booking of that id, as `Reservation.cancel` does."""
        return bool(execute(self._client, self._calls.cancel(call_id)))


@constructor_tells(**RATE)
class AsyncRateLimiter:
    """As `RateLimiter`, on an asyncio client.

    For example::

        calls = AsyncRateLimiter(redis.asyncio.Redis(), "api", "100/m")
        slot = await calls.reserve()
        await asyncio.sleep(slot.delay)
    """

    def __init__(
        self,
        client: AsyncRedis,
        name: str,
        rates: str | Rate | Sequence[str | Rate],
        *,
        burst: int | Sequence[int] = 1,
        prefix: str = "throttle",
    ) -> None:
        self._client = checked_client(client, awaits=True)
        self._calls = _Calls.of(name, rates, burst, prefix)

    def __repr__(self) -> str:
        return f"<AsyncRateLimiter {self._calls}>"

    async def acquire(self, cost: int = 1, *, call_id: str | None = None) -> Decision:
        """As `RateLimiter.acquire`."""
        return self._calls.decision(await execute_async(self._client, self._calls.take(cost, 0, _name(call_id))))

    async def peek(self, cost: int = 1) -> Decision:
        """As `RateLimiter.peek`."""
        return self._calls.decision(await execute_async(self._client, self._calls.peek(cost)))

    async def reserve(
        self, cost: int = 1, max_wait: float | None = None, *, call_id: str | None = None
    ) -> AsyncReservation:
        """As `RateLimiter.reserve`."""
        call_id = _name(call_id)
        raw = await execute_async(self._client, self._calls.take(cost, _microseconds(max_wait), call_id))
        return AsyncReservation(*_slot(raw), call_id, self)

    async def cancel(self, call_id: str) -> bool:
        """As `RateLimiter.cancel`."""
        return bool(await execute_async(self._client, self._calls.cancel(call_id)))


@dataclass(frozen=True)
class _Calls:
    """Builds the calls of one limiter, and reads their replies."""

    key: str
    rates: tuple[Rate, ...]
    bursts: tuple[int, ...]
    #: one for each rate: its unit, and a number among those of the same unit
    fields: tuple[str, ...]

    @classmethod
    def of(cls, name: str, rates: str | Rate | Sequence[str | Rate], burst: int | Sequence[int], prefix: str) -> _Calls:
        read = read_rates(rates)
        units = [rate.unit for rate in read]
        # Not by count: when that changes, what is booked stays booked.
        fields = tuple(f"{unit}{units[:position].count(unit)}" for position, unit in enumerate(units))
        return cls(named_key(prefix, "rate", name), read, _bursts(burst, read), fields)

    def __str__(self) -> str:
        return f"{self.key!r} " + ", ".join(
            f"{rate} burst {burst}" for rate, burst in zip(self.rates, self.bursts, strict=True)
        )

    def take(self, cost: int, max_wait: int, call_id: str) -> Call:
        return self._ask("take", cost, max_wait, call_id)

    def peek(self, cost: int) -> Call:
        return self._ask("peek", cost, 0, "")

    def cancel(self, call_id: str) -> Call:
        name = printable("call_id", call_id)
        return Call(Script.load("rate/cancel"), (1, self.key, name, len(self.fields), *self.fields))

    def decision(self, raw: Any) -> Decision:
        allowed, now, start, *booked = raw
        # Until when each rate is booked: microseconds, and parts of which `count` are one more.
        until = zip(booked[::2], booked[1::2], self.rates, self.bursts, strict=True)
        left = min(_left(max(us - now, 0), parts if us >= now else 0, rate, burst) for us, parts, rate, burst in until)
        return Decision(bool(allowed), 0.0 if allowed else (start - now) / _SECOND, max(left, 0))

    def _ask(self, verb: str, cost: int, max_wait: int, call_id: str) -> Call:
        whole_number("cost", cost, 1, _MOST)
        arguments: list[str | int] = [1, self.key, call_id, max_wait, len(self.rates)]
        for name, rate, burst in zip(self.fields, self.rates, self.bursts, strict=True):
            arguments += (name, rate.count, *_spacing("cost", rate, cost), *_spacing("burst", rate, max(burst, cost)))
        return Call(Script.load(f"rate/{verb}", "rate/gcra", "rate/bookings"), tuple(arguments))


def _left(ahead: int, parts: int, rate: Rate, burst: int) -> int:
    """Return how many of a burst are left if the rate is booked that far ahead."""
    return (burst * rate.period - ahead * rate.count - parts) // rate.period


def _bursts(burst: int | Sequence[int], rates: Sequence[Rate]) -> tuple[int, ...]:
    bursts = tuple(burst) if isinstance(burst, Sequence) else (burst,) * len(rates)
    if len(bursts) != len(rates):
        raise ConfigurationError(
            f"burst has {len(bursts)} numbers for {len(rates)} rates: give one for all, or one for each"
        )
    for rate, several in zip(rates, bursts, strict=True):
        _spacing("burst", rate, whole_number("burst", several, 1, _MOST))
    return bursts


def _spacing(what: str, rate: Rate, amount: int) -> tuple[int, int]:
    us, parts = rate.spacing(amount)
    if us >= _HORIZON:
        raise ConfigurationError(f"{what} {amount} is more than ten years of {rate}: make it smaller")
    return us, parts


def _microseconds(max_wait: object) -> int:
    if max_wait is None:
        return _HORIZON
    if isinstance(max_wait, bool) or not isinstance(max_wait, int | float) or not max_wait >= 0:
        raise ConfigurationError(f"max_wait must be a number of seconds, 0 or more, or None, got {max_wait!r}")
    return int(min(max_wait * _SECOND, _HORIZON))


def _name(call_id: str | None) -> str:
    return os.urandom(8).hex() if call_id is None else printable("call_id", call_id)


def _slot(raw: Any) -> tuple[bool, datetime, float]:
    booked, now, start, *_ = raw
    return bool(booked), _EPOCH + timedelta(microseconds=start), max(start - now, 0) / _SECOND
