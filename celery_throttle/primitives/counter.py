"""A whole number that many processes share; each change takes one round trip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_throttle.core.checks import text, whole
from celery_throttle.core.wrong_calls import constructor_with_fixes
from celery_throttle.primitives.checks import checked_client, named_key, space
from celery_throttle.primitives.driving import ask, blocking
from celery_throttle.store.scripts import Call, Script

if TYPE_CHECKING:
    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

__all__ = ["AsyncCounter", "Counter"]

#: Lua's numbers are exact from minus this to this.
_MOST = 2**53 - 1


@dataclass(frozen=True)
class _Calls:
    """Builds the calls of one counter."""

    value: str
    #: the parts of the key of a call id, before and behind the verb
    called: tuple[str, str]

    @classmethod
    def of(cls, name: str, prefix: str) -> _Calls:
        # The length marks the end of the name, so that two names with two ids never make one key.
        return cls(named_key(prefix, "counter", name), (f"{space(prefix)}:called", f"{len(name)}:{name}"))

    def get(self) -> Call:
        return Call(Script.load("counter/get"), (1, self.value))

    def add(self, amount: int, call_id: str | None) -> Call:
        return self._change("add", call_id, whole("amount", amount, -_MOST, _MOST))

    def compare_and_set(self, expected: int, new: int, call_id: str | None) -> Call:
        both = whole("expected", expected, -_MOST, _MOST), whole("new", new, -_MOST, _MOST)
        return self._change("compare_and_set", call_id, *both)

    def advance(self, step: int, floor: int | None, call_id: str | None) -> Call:
        at_least = () if floor is None else (whole("floor", floor, -_MOST, _MOST),)
        return self._change("advance", call_id, whole("step", step, 0, _MOST), *at_least)

    def get_and_reset(self, call_id: str | None) -> Call:
        return self._change("get_and_reset", call_id)

    def _change(self, verb: str, call_id: str | None, *rest: int) -> Call:
        script = Script.load(f"counter/{verb}", "counter/call", "counter/value")
        if call_id is None:
            return Call(script, (1, self.value, *rest))
        before, after = self.called
        call = f"{before}:{verb}:{after}:{text('call_id', call_id)}"
        return Call(script, (2, self.value, call, *rest))


def _value(raw: Any) -> int:
    if raw is None:
        raise OverflowError(f"A counter goes from -{_MOST} to {_MOST}; the counter is unchanged")
    return int(raw)


class _Counter:
    """What both kinds of counters have."""

    def __init__(self, client: Any, name: str, prefix: str, *, awaits: bool) -> None:
        self._client = checked_client(client, awaits=awaits)
        self._calls = _Calls.of(name, prefix)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._calls.value!r}>"


@constructor_with_fixes()
class AsyncCounter(_Counter):
    """As `Counter`, on an asyncio client.

    For example::

        orders = AsyncCounter(redis.asyncio.Redis(), "orders")
        await orders.add()
    """

    def __init__(self, client: AsyncRedis, name: str, *, prefix: str = "throttle") -> None:
        super().__init__(client, name, prefix, awaits=True)

    async def get(self) -> int:
        """As `Counter.get`."""
        return _value(await ask(self._client, self._calls.get()))

    async def add(self, amount: int = 1, *, call_id: str | None = None) -> int:
        """As `Counter.add`."""
        return _value(await ask(self._client, self._calls.add(amount, call_id)))

    async def compare_and_set(self, expected: int, new: int, *, call_id: str | None = None) -> bool:
        """As `Counter.compare_and_set`."""
        return bool(await ask(self._client, self._calls.compare_and_set(expected, new, call_id)))

    async def advance(self, step: int, floor: int | None = None, *, call_id: str | None = None) -> int:
        """As `Counter.advance`."""
        return _value(await ask(self._client, self._calls.advance(step, floor, call_id)))

    async def get_and_reset(self, *, call_id: str | None = None) -> int:
        """As `Counter.get_and_reset`."""
        return _value(await ask(self._client, self._calls.get_and_reset(call_id)))


@constructor_with_fixes()
class Counter(_Counter):
    """A whole number that many processes share; each method is one script, so no change is ever retried::

        from celery_throttle.primitives import Counter
        from redis import Redis

        orders = Counter(Redis(), "orders")
        orders.add()                        # 1
        orders.add(5)                       # 6
        orders.compare_and_set(6, 10)       # True: it was 6
        orders.get_and_reset()              # 10, and now it is 0

        slots = Counter(Redis(), "newsletter")
        slots.advance(30_000_000)           # the store's time in microseconds: now
        slots.advance(30_000_000)           # half a minute later: no other call returns this time

    A counter that does not exist is 0, and one that is 0 has no key. Others stay until they are 0 again: they have no
    TTL. Numbers are whole and go from -(2**53 - 1) to 2**53 - 1. `AsyncCounter` is the same for asyncio.

    Source: ``value = max(now, value + step)`` is the usual benchmark of optimistic locking (WATCH, MULTI, EXEC) against
    pessimistic locking; a script needs neither. Complexity: O(1), one round trip.

    Args:
        client: a redis-py client, decoding replies or not.
        name: the name of the counter; 1 to 200 printable characters.
        prefix: the beginning of its keys.

    Raises:
        ConfigurationError: an argument cannot work.
        OverflowError: the number would leave the range; the counter is unchanged.
        redis.RedisError: an error of the client; the server may have carried out the call or not.

    Warning:
        redis-py sends a command again when its reply is lost (by default up to ten times), and the server may have
        carried out the first one, too. Then `add` adds twice, `advance` leaves out a slot, `compare_and_set` returns
        False after a success, and `get_and_reset` loses the value. Where this matters, give the call an id. A call with
        the same ``call_id`` within ten minutes changes nothing and returns the reply of the first, even with other
        arguments. Each id is a key of its own for these ten minutes.

        The value is as durable as the server: a failover or a restart may lose the last changes. The store's time can
        go back; `advance` never does.
    """

    def __init__(self, client: Redis, name: str, *, prefix: str = "throttle") -> None:
        super().__init__(client, name, prefix, awaits=False)

    @blocking(AsyncCounter.get)
    def get(self) -> int:
        """Return the value."""

    @blocking(AsyncCounter.add)
    def add(self) -> int:
        """Add an amount, which may be negative; return the new value."""

    @blocking(AsyncCounter.compare_and_set)
    def compare_and_set(self) -> bool:
        """Set the counter to ``new`` if it is ``expected``; return whether it was set."""

    @blocking(AsyncCounter.advance)
    def advance(self) -> int:
        """Set the counter to ``max(floor, value + step)`` and return this new value.

        Args:
            step: the amount to add; 0 or more, so that the value never goes back.
            floor: the lowest new value; by default the store's time in microseconds since 1970.
            call_id: see the warning above.
        """

    @blocking(AsyncCounter.get_and_reset)
    def get_and_reset(self) -> int:
        """Set the counter to 0 and return its value before."""
