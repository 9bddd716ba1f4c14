"""`Limit`, with what can be done with it outside of tasks."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from celery import _state

from celery_throttle.clients import store_client
from celery_throttle.core.asking import plain
from celery_throttle.core.limits import Limit as LimitValue
from celery_throttle.core.policy import Needs, is_cost, key_text, needs_text
from celery_throttle.core.reserved import ReservedStart
from celery_throttle.errors import ConfigurationError, NotAcquired
from celery_throttle.permits.free import Free
from celery_throttle.permits.outside import outside_of
from celery_throttle.permits.permit import acquire, acquire_async
from celery_throttle.settings import throttles

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from celery_throttle.core.buckets import Bucket
    from celery_throttle.permits.outside import Outside
    from celery_throttle.permits.permit import Permit

__all__ = ["AsyncAcquire", "Limit"]

_TEN_YEARS = 10 * 365 * 86400.0


class AsyncAcquire:
    """What ``acquire_async`` returns: await it for the `Permit`, or use it in an ``async with`` statement."""

    def __init__(self, acquire: Callable[[], Any]) -> None:
        self._acquire = acquire
        self._permit: Permit | None = None

    def __await__(self) -> Any:
        return self._acquire().__await__()

    async def __aenter__(self) -> Permit:
        self._permit = await self._acquire()
        return self._permit

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._permit is not None:
            await asyncio.shield(asyncio.to_thread(self._permit.__exit__, kind, error, traceback))


class Limit(LimitValue):
    __doc__ = LimitValue.__doc__

    def acquire(self, timeout: float | None = None, *, key: object = None, cost: int = 1, app: Any = None) -> Permit:
        """Take a permit outside of a task, in turn with the tasks that wait::

            with gpu.acquire(timeout=30):
                ...

        Args:
            timeout: seconds to wait; 0 not at all, None for ever.
            key: whose permit, for a limit with a key.
            cost: how many permits, and starts of its rates.
            app: the Celery app; by default the current one.

        Raises:
            NotAcquired: none came in time, or as many wait as may (``max_parked``), which is said at once.
            ConfigurationError: an argument cannot work.
            StoreUnavailable: the store did not answer.

        Warning:
            Do not wait for one in the body of a task that holds a permit of the same limit: with all permits held by
            such tasks, none goes on.
        """
        _check_timeout(timeout)
        outside = self._outside(app)
        return acquire(outside, self._needs(key, cost), (self.name, self.declared), timeout)

    def acquire_async(
        self, timeout: float | None = None, *, key: object = None, cost: int = 1, app: Any = None
    ) -> AsyncAcquire:
        """As `acquire`, for asyncio: ``async with gpu.acquire_async(timeout=30): ...``."""
        _check_timeout(timeout)
        needs, outside = self._needs(key, cost), self._outside(app)
        return AsyncAcquire(lambda: acquire_async(outside, needs, (self.name, self.declared), timeout))

    def reserve(
        self, *, key: object = None, cost: int = 1, max_wait: float | None = None, app: Any = None
    ) -> ReservedStart:
        """Book the next start that the rates allow, and return when it is::

            mail.apply_async(("a@example.org",), eta=mails.reserve())

        As the ``eta`` of a task that has this limit, the start is not counted again.

        Args:
            key: whose, for a limit with a key.
            cost: how many starts.
            max_wait: seconds; a start that is further away is not booked.
            app: the Celery app; by default the current one.

        Raises:
            NotAcquired: the next start is later than ``max_wait`` allows.
            ConfigurationError: the limit has no rate, or an argument cannot work.
            StoreUnavailable: the store did not answer.
        """
        bucket = self._bucket(key, cost)
        longest = _TEN_YEARS if max_wait is None else max_wait
        app = _app(app)
        if self.rates and not throttles(app):
            return ReservedStart.of(time.time_ns() // 1000, "")
        booked: Any = None
        if self.rates:
            client = store_client(app, self.group)
            booked = client.ask(client.store.reserve(bucket.text, self.declared, cost, longest))
        if not booked:
            raise ConfigurationError(f"Limit {self.name!r} has no rate to book a start of: write rate='100/m'")
        start, now = booked
        if start < now:
            raise NotAcquired(f"the next start of limit {str(bucket)!r} is more than {plain(longest)} s away")
        return ReservedStart.of(start, bucket.text)

    def _outside(self, app: Any) -> Outside | Free:
        app = _app(app)
        return outside_of(app, self.group) if throttles(app) else Free()

    def _needs(self, key: object, cost: int) -> Needs:
        bucket = self._bucket(key, cost)
        return Needs((bucket.text,), needs_text([(bucket, cost)]))

    def _bucket(self, key: object, cost: int) -> Bucket:
        if (key is None) != (self.key is None):
            fix = "leave key out" if self.key is None else "say whose permit it is, key=..."
            raise ConfigurationError(f"Limit {self.name!r}: {fix}")
        if not is_cost(cost):
            raise ConfigurationError(f"Limit {self.name!r}: cost must be a whole number of 1 or more, got {cost!r}")
        return self.bucket(None if key is None else key_text(key))


def _app(app: Any) -> Any:
    """Return the app whose store is meant."""
    if app is not None:
        return app
    # Celery's current app is one for each thread, and threads of a web server have none until somebody sets it.
    current = getattr(_state._tls, "current_app", None) or _state.default_app  # type: ignore[attr-defined] # noqa: SLF001
    if current is not None:
        return current
    apps = list(_state._get_active_apps())  # type: ignore[attr-defined] # noqa: SLF001
    if len(apps) == 1:
        return apps[0]
    raise ConfigurationError("Limit: which Celery app's store is it? Write acquire(app=app), or call app.set_default()")


def _check_timeout(timeout: object) -> None:
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise ConfigurationError(f"timeout must be seconds, 0 or more, or None, got {timeout!r}")
