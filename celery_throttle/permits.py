"""Permits outside of tasks: in a web handler, a script, a part of a task's body; threads and asyncio."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any

from celery import _state

from celery_throttle.core.limits import Limit as LimitValue
from celery_throttle.core.limits import shown
from celery_throttle.core.reserved import ReservedStart
from celery_throttle.core.terms import Needs, is_cost, key_text
from celery_throttle.errors import ConfigurationError, NotAcquired
from celery_throttle.primitives.lease.sync import RenewableLease
from celery_throttle.waiting import Forgotten, waiting_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from celery_throttle.waiting import Waiting

__all__ = ["AsyncAcquire", "Limit", "Permit"]

_TEN_YEARS = 10 * 365 * 86400.0


class Permit(RenewableLease):
    """A permit held outside of a task; in a ``with`` statement it is given back at the end of the block.

    It is renewed by a thread while it is held. Leaving the block raises `LeaseLost` if it was lost meanwhile.

    Attributes:
        identity: the limit, with its key.
        owner: the name of the holder in the store.
        lost: whether somebody else may have it.
        lease_left: seconds that are left for certain.
    """

    def __init__(self, waiting: Waiting, holder: str, nonce: str, needs: Needs, started: float) -> None:
        super().__init__(
            shown(needs.pool), holder, seconds=waiting.lease, deadline=started + waiting.lease, on_lost=None
        )
        self._waiting, self._nonce, self._needs = waiting, nonce, needs

    def renew(self, lease: float | None = None) -> bool:  # noqa: ARG002 - all permits last ``throttle_lease``
        """Let the lease begin anew; always True.

        Raises:
            LeaseLost: it is not held any more.
            StoreUnavailable: the store did not answer.
        """
        self._check_held()
        started = time.monotonic()
        if not self._waiting.renew(self.owner, self._nonce, self._needs):
            self._check_held()
            raise self._lose()
        if self._releasing:
            # Released while this was on its way, which may have put it back.
            self._waiting.release(self.owner, self._nonce)
        self._deadline = started + self._seconds
        return True

    def release(self) -> bool:
        """Give it back; False if it was lost before. Again: the same answer.

        Raises:
            StoreUnavailable: the store did not answer; call it again, or leave it to the end of the lease.
        """
        self._releasing = True
        self._stop.put(None)
        if self._released is None:
            lost = self.lost
            self._waiting.release(self.owner, self._nonce)
            self._released = not lost
        return self._released


class _Attempt:
    """One holder on its way to a permit."""

    def __init__(self, waiting: Waiting, needs: Needs) -> None:
        self._waiting, self._needs = waiting, needs
        self._holder = f"outside:{uuid.uuid4()}"
        self._started = time.monotonic()

    def now(self) -> Permit | None:
        """The permit if there is one now."""
        self._started = time.monotonic()
        return self._held(self._waiting.ask(self._holder, self._needs))

    def line_up(self) -> Future[str]:
        """Get in line."""
        return self._waiting.line_up(self._holder, self._needs)

    def held(self, nonce: str) -> Permit:
        """The permit that came."""
        permit = Permit(self._waiting, self._holder, nonce, self._needs, time.monotonic())
        permit.keep()
        return permit

    def give_up(self) -> Permit:
        """Leave the line.

        Raises:
            NotAcquired: always, but for a permit that came at the last moment.
        """
        permit = self._held(self._waiting.leave(self._holder))
        if permit is None:
            raise NotAcquired(f"no permit of limit {shown(self._needs.pool)!r} came in time")
        return permit

    def leave(self) -> None:
        """Leave the line, and give back what came at the last moment."""
        permit = self._held(self._waiting.leave(self._holder))
        if permit is not None:
            permit.release()

    def _held(self, nonce: str | None) -> Permit | None:
        return None if nonce is None else self.held(nonce)


def _acquire(waiting: Waiting, needs: Needs, timeout: float | None) -> Permit:
    attempt = _Attempt(waiting, needs)
    until = None if timeout is None else time.monotonic() + timeout
    if permit := attempt.now():
        return permit
    if timeout == 0:
        raise NotAcquired(f"no permit of limit {shown(needs.pool)!r} is free")
    while True:
        granted = attempt.line_up()
        try:
            return attempt.held(granted.result(None if until is None else max(until - time.monotonic(), 0)))
        except Forgotten:
            continue
        except FutureTimeoutError:
            return attempt.give_up()
        except BaseException:
            attempt.leave()
            raise


async def _acquire_async(waiting: Waiting, needs: Needs, timeout: float | None) -> Permit:
    attempt = _Attempt(waiting, needs)
    until = None if timeout is None else time.monotonic() + timeout
    if permit := await asyncio.to_thread(attempt.now):
        return permit
    if timeout == 0:
        raise NotAcquired(f"no permit of limit {shown(needs.pool)!r} is free")
    while True:
        granted = asyncio.wrap_future(await asyncio.to_thread(attempt.line_up))
        try:
            left = None if until is None else max(until - time.monotonic(), 0)
            return attempt.held(await asyncio.wait_for(asyncio.shield(granted), left))
        except Forgotten:
            continue
        except (TimeoutError, asyncio.TimeoutError):
            return await asyncio.to_thread(attempt.give_up)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(attempt.leave))
            raise


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
            NotAcquired: none came in time.
            ConfigurationError: an argument cannot work.
            StoreUnavailable: the store did not answer.

        Warning:
            Do not wait for one in the body of a task that holds a permit of the same limit: with all permits held by
            such tasks, none goes on.
        """
        _check_timeout(timeout)
        return _acquire(waiting_of(_app(app), self.group), self._needs(key, cost), timeout)

    def acquire_async(
        self, timeout: float | None = None, *, key: object = None, cost: int = 1, app: Any = None
    ) -> AsyncAcquire:
        """As `acquire`, for asyncio: ``async with gpu.acquire_async(timeout=30): ...``."""
        _check_timeout(timeout)
        needs, waiting = self._needs(key, cost), waiting_of(_app(app), self.group)
        return AsyncAcquire(lambda: _acquire_async(waiting, needs, timeout))

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
        needs = self._needs(key, cost)
        longest = _TEN_YEARS if max_wait is None else max_wait
        waiting = waiting_of(_app(app), self.group)
        booked = waiting.reserve(needs.pool, self.declared, cost, longest)
        if booked is None:
            raise ConfigurationError(f"Limit {self.name!r} has no rate to book a start of: write rate='100/m'")
        start, now = booked
        if start < now:
            raise NotAcquired(f"the next start of limit {shown(needs.pool)!r} is more than {longest:g} s away")
        return ReservedStart.of(start, needs.pool)

    def _needs(self, key: object, cost: int) -> Needs:
        if (key is None) != (self.key is None):
            fix = "leave key out" if self.key is None else "say whose permit it is, key=..."
            raise ConfigurationError(f"Limit {self.name!r}: {fix}")
        if not is_cost(cost):
            raise ConfigurationError(f"Limit {self.name!r}: cost must be a whole number of 1 or more, got {cost!r}")
        pool = self.pool(None if key is None else key_text(key))
        more: dict[str, Any] = {"o": 1}
        if cost != 1:
            more["n"] = [[pool, cost, self.declared]]
        return Needs((pool,), self.declared, json.dumps(more))


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
