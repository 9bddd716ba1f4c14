"""One test for both kinds of client."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis as AsyncRedis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis import Redis

    from celery_throttle.embedded import EmbeddedServer


class Blocking:
    """Something of asyncio, used as if it were not: each call waits for its result."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thing: Any) -> None:
        self._loop, self._thing = loop, thing

    def __bool__(self) -> bool:
        return bool(self._thing)

    def __repr__(self) -> str:
        return repr(self._thing)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._thing, name)
        if not inspect.iscoroutinefunction(value):
            return value

        def call(*args: Any, **options: Any) -> Any:
            result = self._loop.run_until_complete(value(*args, **options))
            return Blocking(self._loop, result) if hasattr(result, "cancel") else result

        return call


class AsyncSide:
    """A loop and a client on it."""

    def __init__(self, url: str, **options: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.client = AsyncRedis.from_url(url, **options)

    def block(self, thing: object) -> Any:
        return Blocking(self.loop, thing)

    def close(self) -> None:
        self.loop.run_until_complete(self.client.aclose())
        self.loop.close()


def maker(kind: str, server: EmbeddedServer, client: Redis, sync: Any, on_asyncio: Any) -> Iterator[Callable[..., Any]]:
    """Yield a maker of objects of either kind ("sync", "asyncio"), to be used alike: the body of a fixture."""
    if kind == "sync":
        yield lambda *args, **options: sync(client, *args, **options)
        return
    side = AsyncSide(server.url)
    yield lambda *args, **options: side.block(on_asyncio(side.client, *args, **options))
    side.close()
