"""`Limit` with its methods for use outside of tasks: acquire permits, reserve starts."""

from __future__ import annotations

import math
import time
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

from celery import _state

from celery_throttle.clients import store_client
from celery_throttle.core.checks import TEN_YEARS, plain, seconds, whole
from celery_throttle.core.limits import Limit as LimitValue
from celery_throttle.core.policy import MOST_COST, Needs, key_text, needs_text
from celery_throttle.core.reserved import ReservedStart
from celery_throttle.core.sites import WORKER
from celery_throttle.core.wording import counted
from celery_throttle.core.wrong_calls import with_fixes
from celery_throttle.errors import ConfigurationError, NotAcquired
from celery_throttle.permits.free import Free
from celery_throttle.permits.permit import acquire
from celery_throttle.permits.registry import outside_of
from celery_throttle.primitives.driving import run
from celery_throttle.settings import checked_app, throttles
from celery_throttle.tasks.one_line import in_one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.core.buckets import Bucket
    from celery_throttle.permits.outside import Outside
    from celery_throttle.permits.permit import Permit

__all__ = ["AsyncAcquire", "Limit"]

_with_fixes_of_acquire = with_fixes(
    blocking="write timeout=0 not to wait", max_wait="write timeout=30", lease="set throttle_lease"
)


class AsyncAcquire:
    """Return value of ``acquire_async``: await it for the `Permit`, or use it in an ``async with`` statement."""

    def __init__(self, acquire: Callable[[], Any]) -> None:
        self._acquire = acquire
        self._permit: Permit | None = None
        self._entered = self._used = False

    def __await__(self) -> Any:
        self._used = True
        return self._acquire().__await__()

    def __del__(self) -> None:
        if not self._used:  # as Python does with coroutines
            warnings.warn(
                "limit.acquire_async() was never awaited, so no permit was taken: write async with "
                "limit.acquire_async(timeout=30): ...",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )

    async def __aenter__(self) -> Permit:
        self._used = True
        if self._entered:  # entering twice would release the wrong permit
            raise ConfigurationError(
                "what acquire_async() returns is for one async with: write async with limit.acquire_async(timeout=30): "
                "... each time"
            )
        self._entered = True
        self._permit = await self._acquire()
        return self._permit

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._permit is not None:
            await self._permit.leave(error)

    if not TYPE_CHECKING:  # hidden from type checkers, so that they report the misuse too

        def __enter__(self) -> NoReturn:
            self._used = True  # else `__del__` would warn, too
            raise ConfigurationError("acquire_async is for async with: or write with limit.acquire(timeout=30): ...")

        def __exit__(self, *_: object) -> None: ...


class Limit(LimitValue):
    __doc__ = LimitValue.__doc__

    @_with_fixes_of_acquire
    def acquire(self, timeout: float | None = None, *, key: object = None, cost: int = 1, app: Any = None) -> Permit:
        """Take a permit outside of a task, in turn with the tasks that wait::

            with gpu.acquire(timeout=30):
                ...

        Args:
            timeout: seconds to wait; 0 not at all, None for ever.
            key: the key's value, for a limit with a key.
            cost: how many permits, and starts of its rates.
            app: the Celery app; by default the current one.

        Raises:
            NotAcquired: no permit came in time. At once if ``max_parked`` callers and tasks wait already.
            ConfigurationError: an argument cannot work.
            StoreUnavailable: the store did not answer in that time; at once where ``throttle_on_store_error`` is
                ``fail``. Where that setting is ``run``, an uncounted permit is returned instead.

        Warning:
            Do not wait for a permit in the body of a task that holds one of the same limit: if such tasks hold all
            permits, none of them goes on.
        """
        timeout, outside = self._seconds("timeout", timeout), self._outside(app)
        needs = self._needs(key, cost, outside)
        return run(acquire(outside, needs, (self.name, self.declared), timeout, awaits=False))

    @_with_fixes_of_acquire
    def acquire_async(
        self, timeout: float | None = None, *, key: object = None, cost: int = 1, app: Any = None
    ) -> AsyncAcquire:
        """As `acquire`, for asyncio: ``async with gpu.acquire_async(timeout=30): ...``."""
        timeout, outside = self._seconds("timeout", timeout), self._outside(app)
        needs = self._needs(key, cost, outside)
        return AsyncAcquire(lambda: acquire(outside, needs, (self.name, self.declared), timeout, awaits=True))

    @with_fixes(timeout="write max_wait=30", eta="it returns one: apply_async(eta=limit.reserve())")
    def reserve(
        self, *, key: object = None, cost: int = 1, max_wait: float | None = None, app: Any = None
    ) -> ReservedStart:
        """Book the next start that the rates allow, and return its time::

            mail.apply_async(("a@example.org",), eta=mails.reserve())

        As the ``eta`` of a task that has this limit, the start is not counted again.

        Args:
            key: the key's value, for a limit with a key.
            cost: how many starts.
            max_wait: seconds; a later start is not booked.
            app: the Celery app; by default the current one.

        Raises:
            NotAcquired: the next start is later than ``max_wait`` allows.
            ConfigurationError: the limit has no rate, or an argument cannot work.
            StoreUnavailable: the store did not answer.
        """
        bucket = self._bucket(key, cost)
        wait = self._seconds("max_wait", max_wait)
        longest = TEN_YEARS if wait is None else wait
        app = _app(app)
        if self.rates and not throttles(app):
            return ReservedStart.of(time.time_ns() // 1000, "")
        booked: Any = None
        if self.rates:
            client = store_client(app, self.group)
            booked = client.ask_if_up(client.store.reserve(bucket.text, self.declared, cost, longest))
        if not booked:
            raise ConfigurationError(f"Limit {self.name!r} has no rate to book a start of: write rate='100/m'")
        start, now = booked
        if start < now:
            raise NotAcquired(f"the next start of limit {str(bucket)!r} is more than {plain(longest)} s away")
        return ReservedStart.of(start, bucket.text)

    if not TYPE_CHECKING:  # the methods of its permits, hidden as above

        def release(self, *_: Any, **__: Any) -> NoReturn:
            raise self._no_permit(
                "release() gives back a permit: write permit = limit.acquire(), then permit.release()"
            )

        def __enter__(self) -> NoReturn:
            raise self._no_permit("it takes a permit to be held: write with limit.acquire(timeout=30): ...")

        async def __aenter__(self) -> NoReturn:
            raise self._no_permit("it takes a permit to be held: write async with limit.acquire_async(timeout=30): ...")

        def __exit__(self, *_: object) -> None: ...

        async def __aexit__(self, *_: object) -> None: ...

        def _no_permit(self, why: str) -> ConfigurationError:
            return ConfigurationError(f"Limit {self.name!r}: {why}")

    def _outside(self, app: Any) -> Outside | Free:
        app = _app(app)
        return outside_of(app, self.group) if throttles(app) else Free()

    def _seconds(self, option: str, value: object) -> float | None:
        """Return the seconds of an option, ten years at most; None for None."""
        if value is None:
            return None
        return min(seconds(f"Limit {self.name!r}: {option}", value, most=math.inf), TEN_YEARS)

    def _needs(self, key: object, cost: int, outside: Outside | Free) -> Needs:
        bucket = self._bucket(key, cost)
        needs = Needs((bucket.text,), needs_text([(bucket, cost)]))
        if outside.sites is None:
            return needs
        needs = needs.bound(outside.sites)
        if kind := needs.lacks:
            fix = "take it in a task" if kind == WORKER else f"set throttle_tags = {{{kind!r}: 'a7'}}, or THROTTLE_TAGS"
            raise ConfigurationError(f"Limit {self.name!r}: this process has no permits per {kind!r}: {fix}")
        return needs

    def _bucket(self, key: object, cost: int) -> Bucket:
        if (key is None) != (self.key is None):
            fix = "it has no keys, leave key out" if self.key is None else "name the key of the permit, key='acme'"
            raise ConfigurationError(f"Limit {self.name!r}: got key={key!r}: {fix}")
        whole(f"Limit {self.name!r}: cost", cost, most=MOST_COST)
        if self.permits is not None and cost > self.permits:
            raise ConfigurationError(
                f"Limit {self.name!r}: cost {cost} is more than its {counted(self.permits, 'permit')}: raise the one "
                f"or lower the other"
            )
        return self.bucket(None if key is None else key_text(key))


# A program makes its limits while Celery's command loads the app: an error there ends the command in one line.
Limit.__init__ = in_one_line()(LimitValue.__init__)  # type: ignore[method-assign]


def _app(app: Any) -> Any:
    """Return the given app, else the current one, else the only one of the process.

    Raises:
        ConfigurationError: there are several apps, or none.
    """
    if app is not None:
        return checked_app("acquire", app)
    # Celery's current app is one for each thread, and the threads of a web server have none by default.
    current = getattr(_state._tls, "current_app", None) or _state.default_app  # type: ignore[attr-defined] # noqa: SLF001
    if current is not None:
        return current
    apps = list(_state._get_active_apps())  # type: ignore[attr-defined] # noqa: SLF001
    if len(apps) == 1:
        return apps[0]
    names = ", ".join(sorted(repr(each.main) for each in apps)) or "none"
    raise ConfigurationError(
        f"Limit: which Celery app's store is it? Write acquire(app=app), or call app.set_default(); the apps of this "
        f"process: {names}"
    )
