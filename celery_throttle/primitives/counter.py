"""A whole number that many processes share; each change takes one round trip."""

from __future__ import annotations

from typing import Any, ClassVar, Generic

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from celery_throttle.core.checks import text, whole
from celery_throttle.core.wrong_calls import with_fixes
from celery_throttle.primitives.checks import checked_client, named_key, space
from celery_throttle.primitives.driving import Client, ask, blocking
from celery_throttle.store.scripts import Call, Script

__all__ = ["AsyncCounter", "Counter"]

#: Lua's numbers are exact from minus this to this.
_MOST = 2**53 - 1


def _whole(option: str, number: int, least: int = -_MOST) -> int:
    return whole(option, number, least, _MOST)


def _value(raw: Any) -> int:
    if raw is None:
        raise OverflowError(f"A counter goes from -{_MOST} to {_MOST}; the counter is unchanged")
    return int(raw)


class _Counter(Generic[Client]):
    """What both kinds of counters have."""

    _awaits: ClassVar[bool]

    @with_fixes()
    def __init__(self, client: Client, name: str, *, prefix: str = "throttle") -> None:
        self._client: Any = checked_client(client, awaits=self._awaits)
        self._key = named_key(prefix, "counter", name)
        self._name, self._space = name, space(prefix)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._key!r}>"

    def _change(self, verb: str, call_id: str | None, *numbers: int) -> Call:
        keys = [self._key]
        if call_id is not None:
            # The length marks the end of the name, so that two names with two ids never make one key.
            name = f"{len(self._name)}:{self._name}"
            keys.append(f"{self._space}:called:{verb}:{name}:{text('call_id', call_id)}")
        return Call(Script.load(f"counter/{verb}", "counter/call", "counter/value"), (len(keys), *keys, *numbers))


class AsyncCounter(_Counter[AsyncRedis]):
    """As `Counter`, on an asyncio client.

    For example::

        orders = AsyncCounter(redis.asyncio.Redis(), "orders")
        await orders.add()
    """

    _awaits = True

    async def get(self) -> int:
        """As `Counter.get`."""
        return _value(await ask(self._client, Call(Script.load("counter/get"), (1, self._key))))

    async def add(self, amount: int = 1, *, call_id: str | None = None) -> int:
        """As `Counter.add`."""
        call = self._change("add", call_id, _whole("amount", amount))
        return _value(await ask(self._client, call))

    async def compare_and_set(self, expected: int, new: int, *, call_id: str | None = None) -> bool:
        """As `Counter.compare_and_set`."""
        call = self._change("compare_and_set", call_id, _whole("expected", expected), _whole("new", new))
        return bool(await ask(self._client, call))

    async def advance(self, step: int, floor: int | None = None, *, call_id: str | None = None) -> int:
        """As `Counter.advance`."""
        at_least = () if floor is None else (_whole("floor", floor),)
        call = self._change("advance", call_id, _whole("step", step, 0), *at_least)
        return _value(await ask(self._client, call))

    async def get_and_reset(self, *, call_id: str | None = None) -> int:
        """As `Counter.get_and_reset`."""
        return _value(await ask(self._client, self._change("get_and_reset", call_id)))


class Counter(_Counter[Redis]):
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

    _awaits = False

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
