"""A limit on starts per second, minute, hour or day, over all processes that share a Redis."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from celery_throttle.core.checks import TEN_YEARS, seconds, text, whole
from celery_throttle.core.rates import Rate, read_bursts, read_rates
from celery_throttle.core.wording import at
from celery_throttle.core.wording import seconds as shown
from celery_throttle.core.wrong_calls import with_fixes
from celery_throttle.errors import ConfigurationError
from celery_throttle.primitives.checks import checked_client, named_key
from celery_throttle.primitives.driving import Client, ask, blocking
from celery_throttle.primitives.lease import store_time
from celery_throttle.store.scripts import Call, Script

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

__all__ = ["AsyncRateLimiter", "AsyncReservation", "Decision", "RateLimiter", "Reservation"]

_SECOND = 1_000_000
#: In microseconds. So booked times stay far below 2**53, above which Lua's numbers are not exact.
_HORIZON = int(TEN_YEARS) * _SECOND
_MOST = 10**12


@dataclass(frozen=True)
class Decision:
    """The answer to a call that asks for a start; true if the start is allowed.

    Attributes:
        allowed: whether the caller may start now; an allowed start is counted.
        retry_after: seconds until the start is allowed, unless another caller takes it; 0.0 if it is allowed now.
        remaining: number of further starts that are allowed now.
    """

    allowed: bool
    retry_after: float
    remaining: int

    def __bool__(self) -> bool:
        return self.allowed

    def __str__(self) -> str:
        return f"allowed, {self.remaining} more now" if self.allowed else f"refused, again in {shown(self.retry_after)}"


@dataclass(frozen=True)
class _Slot:
    booked: bool
    start: datetime
    delay: float
    call_id: str = field(repr=False)
    _limiter: Any = field(repr=False, compare=False)

    def __bool__(self) -> bool:
        return self.booked

    def __str__(self) -> str:
        return f"{'booked for' if self.booked else 'refused, next start'} {at(self.start)}, in {shown(self.delay)}"


class Reservation(_Slot):
    """The answer to a call that books a start; true if the start is booked.

    Attributes:
        booked: False if the booking was refused, because the start would be later than ``max_wait`` allows.
        start: the time of the start by the store's clock (UTC); also of a refused one.
        delay: seconds until the start, never below 0.0.
        call_id: the id of the booking in the store.
    """

    def cancel(self) -> bool:
        """Give the start back; return whether that was possible. Only the last booking can be given back."""
        return bool(self._limiter.cancel(self.call_id))


class AsyncReservation(_Slot):
    """As `Reservation`."""

    async def cancel(self) -> bool:
        """As `Reservation.cancel`."""
        return bool(await self._limiter.cancel(self.call_id))


def _left(ahead: int, parts: int, rate: Rate, burst: int) -> int:
    """Return how many starts of a burst are left if the bookings of a rate end ``ahead`` microseconds from now."""
    return (burst * rate.period - ahead * rate.count - parts) // rate.period


def _spacing(what: str, rate: Rate, amount: int) -> tuple[int, int]:
    us, parts = rate.spacing(amount)
    if us >= _HORIZON:
        raise ConfigurationError(f"{what} {amount} is more than ten years of {rate}: make it smaller")
    return us, parts


def _microseconds(max_wait: object) -> int:
    if max_wait is None:
        return _HORIZON
    return int(min(seconds("max_wait", max_wait, most=math.inf) * _SECOND, _HORIZON))


def _name(call_id: str | None) -> str:
    return os.urandom(8).hex() if call_id is None else text("call_id", call_id)


def _slot(raw: Any) -> tuple[bool, datetime, float]:
    booked, now, start, *_ = raw
    return bool(booked), store_time(start), max(start - now, 0) / _SECOND


class _Limiter(Generic[Client]):
    """What both kinds of limiters have."""

    _awaits: ClassVar[bool]
    _reservation: ClassVar[Any]

    @with_fixes()
    def __init__(
        self,
        client: Client,
        name: str,
        rates: str | Rate | Sequence[str | Rate],
        *,
        burst: int | Sequence[int] = 1,
        prefix: str = "throttle",
    ) -> None:
        self._rates = read_rates(rates)
        self._bursts = read_bursts("", burst, self._rates, _MOST)
        for rate, several in zip(self._rates, self._bursts, strict=True):
            _spacing("burst", rate, several)
        self._key = named_key(prefix, "rate", name)
        self._client: Any = checked_client(client, awaits=self._awaits)
        units = [rate.unit for rate in self._rates]
        # One for each rate: its unit, and a number among those of the same unit. Without the count, so that bookings
        # stay when the count of a rate changes.
        self._fields = [f"{unit}{units[:position].count(unit)}" for position, unit in enumerate(units)]

    def __repr__(self) -> str:
        rates = (f"{rate} burst {burst}" for rate, burst in zip(self._rates, self._bursts, strict=True))
        return f"<{type(self).__name__} {self._key!r} {', '.join(rates)}>"

    async def _ask(self, verb: str, cost: int, max_wait: int = 0, call_id: str = "") -> Any:
        whole("cost", cost, 1, _MOST)
        arguments: list[str | int] = [1, self._key, call_id, max_wait, len(self._rates)]
        for name, rate, burst in zip(self._fields, self._rates, self._bursts, strict=True):
            arguments += (name, rate.count, *_spacing("cost", rate, cost), *_spacing("burst", rate, max(burst, cost)))
        return await ask(
            self._client, Call(Script.load(f"rate/{verb}", "rate/gcra", "rate/bookings"), tuple(arguments))
        )

    def _decision(self, raw: Any) -> Decision:
        allowed, now, start, *booked = raw
        # The end of the bookings of each rate: microseconds, and 1/`count` microseconds.
        until = zip(booked[::2], booked[1::2], self._rates, self._bursts, strict=True)
        left = min(_left(max(us - now, 0), parts if us >= now else 0, rate, burst) for us, parts, rate, burst in until)
        return Decision(bool(allowed), 0.0 if allowed else (start - now) / _SECOND, max(left, 0))


class AsyncRateLimiter(_Limiter[AsyncRedis]):
    """As `RateLimiter`, on an asyncio client.

    For example::

        calls = AsyncRateLimiter(redis.asyncio.Redis(), "api", "100/m")
        slot = await calls.reserve()
        await asyncio.sleep(slot.delay)
    """

    _awaits, _reservation = True, AsyncReservation

    async def acquire(self, cost: int = 1, *, call_id: str | None = None) -> Decision:
        """As `RateLimiter.acquire`."""
        return self._decision(await self._ask("take", cost, 0, _name(call_id)))

    async def peek(self, cost: int = 1) -> Decision:
        """As `RateLimiter.peek`."""
        return self._decision(await self._ask("peek", cost))

    async def reserve(
        self, cost: int = 1, max_wait: float | None = None, *, call_id: str | None = None
    ) -> AsyncReservation:
        """As `RateLimiter.reserve`."""
        call_id = _name(call_id)
        raw = await self._ask("take", cost, _microseconds(max_wait), call_id)
        return self._reservation(*_slot(raw), call_id, self)

    async def cancel(self, call_id: str) -> bool:
        """As `RateLimiter.cancel`."""
        call = Call(
            Script.load("rate/cancel"), (1, self._key, text("call_id", call_id), len(self._fields), *self._fields)
        )
        return bool(await ask(self._client, call))


class RateLimiter(_Limiter[Redis]):
    """A limit on starts per second, minute, hour or day, over all processes::

        from celery_throttle.primitives import RateLimiter
        from redis import Redis

        calls = RateLimiter(Redis(), "api", "100/m", burst=10)
        if decision := calls.acquire():
            print("go on;", decision.remaining, "more may start at once")
        else:
            print("again in", decision.retry_after, "seconds")

        if slot := calls.reserve(max_wait=60):  # books a future start, so no later caller overtakes
            print("sleep", slot.delay, "seconds, or use", slot.start, "as eta")
            slot.cancel()                       # not needed after all

    Without a pause, starts are evenly spaced: "100/m" is one every 0.6 seconds. After a pause up to ``burst`` starts
    are allowed at once. A period of a rate begins with a start, and its end is exclusive. In any period there are at
    most ``count + burst - 1`` starts. With several rates, a start needs the consent of all; a refused one counts for
    none of them.

    A call with a ``cost`` counts as that many starts. With a cost above ``burst`` the call has to wait until all booked
    starts are used up. Then it starts, and later calls wait longer. For the bound above, that cost replaces ``burst``.

    `acquire` is for callers that can come back later; a due start goes to the next call. `reserve` is first come, first
    served. `AsyncRateLimiter` is the same for asyncio.

    Source: GCRA, the generic cell rate algorithm (ITU-T I.371), as in redis-cell and throttled, with reservations
    added. For each rate the store keeps the end of its bookings, exactly: in microseconds of the store's clock and
    fractions of one. Complexity: O(number of rates), one round trip, one key of about 200 bytes. The key expires one
    minute after all booked starts are used up.

    Args:
        client: a redis-py client, decoding replies or not.
        name: the name of the limiter; 1 to 200 printable characters. Limiters of one name and prefix share their state.
        rates: "100/m" or a `Rate`, or a list of them.
        burst: number of starts at once after a pause: one number for all rates, or a list with one for each.
        prefix: the beginning of its keys.

    Raises:
        ConfigurationError: an argument cannot work.
        redis.RedisError: an error of the client; the server may have carried out the call or not.

    Warning:
        With one ``burst`` for several rates, only the widest spaced rate has an effect: "10/s" never matters beside
        "5000/h", which is one every 0.72 seconds. Give the wider rates a burst: ``["10/s", "5000/h"], burst=[1, 500]``.

        redis-py sends a command again when its reply is lost. The repeated call then has the same answer if no other
        call booked in between. Otherwise one start is wasted; no start is ever given twice. A caller with retries of
        its own gets the same answer by one ``call_id`` for all of them.

        Refused callers of `acquire` have no place in line: beside busy callers a large cost may wait for ever.
        A reserved start is a time by the store's clock, and only a promise that the rates allow it. If that clock is
        set back, the bookings in the store move with it, but not the times that were returned. If it is set forward, or
        the server forgets the key (restarted without persistence, failed over, evicted), one burst too many may start.
    """

    _awaits, _reservation = False, Reservation

    @blocking(AsyncRateLimiter.acquire)
    def acquire(self) -> Decision:
        """Take a start now if all rates allow one.

        Args:
            cost: number of starts that the call counts as.
            call_id: the same text for a call that is sent again; by default a new one.
        """

    @blocking(AsyncRateLimiter.peek)
    def peek(self) -> Decision:
        """Return the decision of `acquire`, and count nothing."""

    @blocking(AsyncRateLimiter.reserve)
    def reserve(self) -> Reservation:
        """Book the first start that all rates allow.

        Args:
            cost: number of starts that the call counts as.
            max_wait: the longest delay in seconds; a later start is not booked. By default ten years.
            call_id: the same text for a call that is sent again; by default a new one.
        """

    @blocking(AsyncRateLimiter.cancel)
    def cancel(self) -> bool:
        """Give back the booking with this id, as `Reservation.cancel` does."""
