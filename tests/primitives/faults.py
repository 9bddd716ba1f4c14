"""A client that does not wait for a reply, one to which replies are lost, and a store whose time stands still."""

from __future__ import annotations

import hashlib
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
from redis import Connection, Redis
from redis.backoff import NoBackoff
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from celery_throttle.primitives import lease as leases
from celery_throttle.primitives.driving import ask
from celery_throttle.store.scripts import Call, Script, execute

_TIME = "('TIME')"
_CLOCK = "{clock}"


class ImpatientConnection(Connection):
    """Waits for replies as others do, until the test ends that."""

    patience: float | None = None

    def read_response(self, *args: Any, **options: Any) -> Any:
        socket: Any = self._sock
        if self.patience is not None and not select.select([socket], [], [], self.patience)[0]:
            self.disconnect()  # type: ignore[no-untyped-call]
            raise RedisTimeoutError("no reply in time")
        return super().read_response(*args, **options)


def impatient_client(url: str) -> Redis:
    """Return a client that never sends a command twice, and that stops waiting for replies under `impatience`."""
    return Redis.from_url(url, connection_class=ImpatientConnection, retry=Retry(NoBackoff(), 0))


@contextmanager
def impatience(seconds: float = 0.1) -> Iterator[None]:
    """Let impatient clients wait no longer than that for a reply: meant for while their server is frozen."""
    ImpatientConnection.patience = seconds
    try:
        yield
    finally:
        ImpatientConnection.patience = None


class Resending(Redis):
    """Sends each script ``times`` times and returns the last reply, as redis-py does if the earlier ones are lost."""

    times = 2
    #: called between the two
    between: Callable[[], object] | None = None

    def execute_command(self, *args: Any, **options: Any) -> Any:
        for _ in range(self.times - 1 if args[0] in {"EVAL", "EVALSHA"} else 0):
            super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
            if self.between is not None:
                self.between()
        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]


class StoreClock:
    """Replaces the store's time in the scripts of one module; without a module, in those of its own calls."""

    def __init__(
        self, client: Redis, module: ModuleType | None = None, monkeypatch: pytest.MonkeyPatch | None = None
    ) -> None:
        self._client = client
        self.set(1_800_000_000_000_000)
        if module is not None and monkeypatch is not None:
            for each in (module, leases):
                monkeypatch.setattr(each, "ask", self._ask)

    def set(self, now: int) -> None:
        """Let it be then (us)."""
        self.now = now
        with self._client.pipeline() as pipe:
            pipe.delete(_CLOCK)
            pipe.rpush(_CLOCK, *(str(part) for part in divmod(now, 1_000_000)))
            pipe.execute()

    def move(self, microseconds: int) -> None:
        """Let time pass, or go back."""
        self.set(self.now + microseconds)

    def execute(self, client: Redis, call: Call) -> object:
        """Carry out a call at that time."""
        return execute(client, _by_the_clock(call))

    async def _ask(self, client: object, call: Call) -> Any:
        return await ask(client, _by_the_clock(call))


def _by_the_clock(call: Call) -> Call:
    assert call.script.text.count(_TIME) <= 1  # two would differ, before Redis 7.2
    text = call.script.text.replace(_TIME, f"('LRANGE', '{_CLOCK}', 0, -1)")
    script = Script(call.script.name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
    return Call(script, call.arguments)
