"""One test for threads and for asyncio: objects of asyncio are called as if they were not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from typing import Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_throttle import primitives
from celery_throttle.primitives import lease as leases
from tests.support.waiting import HANGS_AFTER

__all__ = ["AsyncioSide", "SyncSide"]


class SyncSide:
    """Primitives for threads."""

    is_async = False
    #: An option for a client that never sends a command twice.
    no_retry: Any = Retry(NoBackoff(), 0)

    def __init__(self) -> None:
        self._stack = ExitStack()

    def client(self, url: str, **options: Any) -> Any:
        """Return a client that is closed with the side."""
        client: Redis = Redis.from_url(url, **options)
        self._stack.callback(client.close)
        return client

    def make(self, name: str, /, *args: Any, **options: Any) -> Any:
        """Return a primitive by the name of its class for threads."""
        return getattr(primitives, name)(*args, **options)

    def at_work(self) -> int:
        """Return the number of renewals and late releases that go on in the background."""
        return sum(thread.name == "celery_throttle-renew" for thread in threading.enumerate())

    def close(self) -> None:
        self._stack.close()


class AsyncioSide(SyncSide):
    """Primitives for asyncio; their loop runs in a thread, so that any thread can call them and wait."""

    is_async = True
    no_retry = AsyncRetry(NoBackoff(), 0)

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def client(self, url: str, **options: Any) -> Any:
        client = AsyncRedis.from_url(url, **options)
        self._stack.callback(lambda: self.call(client.aclose))
        return client

    def make(self, name: str, /, *args: Any, **options: Any) -> Any:
        return Blocking(self, getattr(primitives, f"Async{name}")(*args, **options))

    def at_work(self) -> int:
        return len(leases._background)

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function in the loop and return its result, also if that has to be awaited."""

        async def result() -> Any:
            value = function(*args, **options)
            return await value if asyncio.iscoroutine(value) else value

        return asyncio.run_coroutine_threadsafe(result(), self.loop).result(HANGS_AFTER)

    def start(self, function: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
        """Begin to await what a function returns, in a task of the loop."""
        task: asyncio.Task[Any] = self.call(lambda: self.loop.create_task(function()))
        return task

    def cancel(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task and wait for its end."""

        async def cancelled() -> None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        self.call(cancelled)
        assert task.cancelled()

    def close(self) -> None:
        self.call(self._end_tasks)
        super().close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _end_tasks(self) -> None:
        """End the background tasks, as long as their connections are there."""
        tasks = list(leases._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Blocking:
    """Something of asyncio: each call waits for its result, and ``with`` is ``async with``."""

    _side: AsyncioSide
    thing: Any

    def __init__(self, side: AsyncioSide, thing: Any) -> None:
        vars(self).update(_side=side, thing=thing)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.thing, name)
        if not callable(value):
            return value

        def call(*args: Any, **options: Any) -> Any:
            result = self._side.call(value, *args, **options)
            is_handle = any(hasattr(result, each) for each in ("cancel", "__aenter__"))
            return Blocking(self._side, result) if is_handle else result

        return call

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.thing, name, value)

    def __enter__(self) -> Any:
        entered = self._side.call(self.thing.__aenter__)
        return self if entered is self.thing else Blocking(self._side, entered)

    def __exit__(self, *error: object) -> bool | None:
        return self._side.call(self.thing.__aexit__, *error)  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return bool(self.thing)

    def __repr__(self) -> str:
        return repr(self.thing)

    def __eq__(self, other: object) -> bool:
        return self.thing is other or (isinstance(other, Blocking) and self.thing is other.thing)

    def __hash__(self) -> int:
        return hash(self.thing)
