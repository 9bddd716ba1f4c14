"""Permits that are held outside of tasks, and functions to acquire them."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent import futures
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakMethod

from redis.exceptions import ResponseError

from celery_throttle.core.policy import limits_text
from celery_throttle.errors import ConfigurationError, NotAcquired, StoreUnavailable
from celery_throttle.permits.free import Free
from celery_throttle.primitives.checks import shown
from celery_throttle.primitives.lease.base import logger
from celery_throttle.primitives.lease.sync import RenewableLease

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from celery_throttle.core.policy import Needs
    from celery_throttle.permits.line import Asking
    from celery_throttle.permits.outside import Outside

__all__ = ["Permit", "acquire", "acquire_async"]

T = TypeVar("T")

#: Seconds to wait for the store's answer, with the time to connect.
_ANSWER = 5.0
#: Seconds between two requests for a permit to a store that does not answer.
_AGAIN = 0.5


class Permit(RenewableLease):
    """A permit held outside of a task; a ``with`` statement gives the permit back at the end of the block.

    A thread renews the permit while it is held. Leaving the block raises `LeaseLost` if the permit was lost.

    Attributes:
        identity: the limit, with its key.
        owner: the name of the holder in the store.
        lost: whether another holder may have the permit.
        lease_left: seconds that the lease has left for certain.
    """

    def __init__(self, outside: Outside | Free, asking: Asking) -> None:
        arrival, deadline = asking.arrival, asking.began + outside.lease
        super().__init__(
            limits_text(arrival.needs), arrival.task, seconds=outside.lease, deadline=deadline, on_lost=None
        )
        self._outside, self._arrival, self._process = outside, arrival, os.getpid()
        # Weakly, so that a permit which its caller dropped without `release` is collected and given back.
        outside.hold(arrival, WeakMethod(self._renewed))

    def renew(self, lease: float | None = None) -> bool:  # noqa: ARG002 - all permits last ``throttle_lease``
        """Begin the lease again; always return True.

        Raises:
            LeaseLost: the permit is not held any more.
            ConfigurationError: the permit was taken before this process was forked.
            StoreUnavailable: the store did not answer.
        """
        self._check_process()
        self._check_held()
        started = time.monotonic()
        if not self._outside.renew(self._arrival):
            self._check_held()
            raise self._lose()
        self._deadline = started + self._seconds
        return True

    def release(self) -> bool:
        """Give the permit back; return False if it was lost before. A second call returns the same.

        Raises:
            ConfigurationError: the permit was taken before this process was forked.
            StoreUnavailable: the store did not answer; the permit is given back when it does, or when the lease ends.
        """
        self._check_process()
        if self._released is None:
            lost, released = self._give_back()
            futures.wait([released], _ANSWER)
            _result_of(released)
            self._released = not lost
        return self._released

    def __enter__(self) -> Self:
        self._check_process()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_forked:
            return  # the parent process still holds the permit
        if isinstance(error, GeneratorExit):
            self._forget()
        else:
            super().__exit__(kind, error, traceback)

    async def leave(self, error: BaseException | None) -> None:
        """Leave the ``async with`` block, given the error that the block raised; a cancelled task gives back, too."""
        if self._released is not None or self._is_forked:
            return
        if isinstance(error, GeneratorExit):
            self._forget()
            return
        lost, released = self._give_back()
        answer = asyncio.wrap_future(released)  # all threads of the loop's executor may wait for this very permit
        await asyncio.wait([answer], timeout=_ANSWER)
        try:
            _result_of(answer)
        except Exception:
            if error is None:
                raise
            logger.warning("celery_throttle: cannot release %s", shown(self.identity), exc_info=True)
            return
        self._released = not lost
        if error is None and lost:
            raise self._lose()

    @property
    def _is_forked(self) -> bool:
        """Whether this process was forked from the one that took the permit: the renewing thread is not here."""
        return self._process != os.getpid()

    def _check_process(self) -> None:
        if self._is_forked:
            raise ConfigurationError(
                f"This permit of {shown(self.identity)} belongs to process {self._process}, which this one was forked "
                f"from and which still holds it: write with limit.acquire(timeout=30): ... in this process"
            )

    def _forget(self) -> None:
        """Give the permit back without waiting: a generator or coroutine ends, perhaps in the garbage collector."""
        if self._released is None:
            self._releasing = True
            self._outside.later(partial(self._outside.release, self._arrival))

    def _give_back(self) -> tuple[bool, futures.Future[None]]:
        """Begin to give the permit back; return whether it was lost before, and a future for the store's answer."""
        self._releasing = True
        return self.lost, self._outside.release(self._arrival)

    def _renewed(self, begun: float | None) -> None:
        if begun is not None:
            self._deadline = begun + self._seconds
        elif not self._releasing:
            self._lose()


def acquire(outside: Outside | Free, needs: Needs, limit: tuple[str, str], timeout: float | None) -> Permit:
    """Return a permit that came within ``timeout`` seconds; see ``Limit.acquire``."""
    patience = _Patience(timeout)
    while True:
        try:
            return _acquire(outside, needs, limit, patience.left)
        except StoreUnavailable as error:
            if permit := patience.without_store(outside, needs, limit, error):
                return permit
        time.sleep(_AGAIN)


async def acquire_async(outside: Outside | Free, needs: Needs, limit: tuple[str, str], timeout: float | None) -> Permit:
    """As `acquire`, for asyncio."""
    patience = _Patience(timeout)
    while True:
        try:
            return await _acquire_async(outside, needs, limit, patience.left)
        except StoreUnavailable as error:
            if permit := patience.without_store(outside, needs, limit, error):
                return permit
        await asyncio.sleep(_AGAIN)


class _Patience:
    """Counts down the seconds that a caller waits, and decides how to go on while the store is out of reach.

    Args:
        timeout: seconds in all; None: for ever.
    """

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._until = None if timeout is None else time.monotonic() + timeout

    @property
    def left(self) -> float | None:
        """The seconds that are left; None for ever, 0 for a caller that does not wait."""
        return self._until - time.monotonic() if self._timeout and self._until else self._timeout

    def without_store(
        self, outside: Outside | Free, needs: Needs, limit: tuple[str, str], error: StoreUnavailable
    ) -> Permit | None:
        """Return an uncounted permit, None to ask again, or raise the error, by ``throttle_on_store_error``."""
        if isinstance(outside, Free):
            raise error
        # A store that refuses still counts: a full one has permits to give as soon as holders give theirs back.
        if outside.on_store_error == "run" and not isinstance(error.__cause__, ResponseError):
            outside.log_unthrottled(limits_text(needs.text), error)
            free = Free()
            return Permit(free, free.ask(needs.text, limit, waits=False))
        is_over = self._until is not None and self._until - time.monotonic() <= _AGAIN
        if outside.on_store_error == "fail" or is_over:
            raise error
        return None


def _acquire(outside: Outside | Free, needs: Needs, limit: tuple[str, str], timeout: float | None) -> Permit:
    asking = outside.ask(needs.text, limit, waits=timeout != 0)
    try:
        futures.wait([asking.permit], _answer_within(timeout))
        if not asking.permit.done():
            outside.leave(asking)
            futures.wait([asking.permit], _ANSWER)
        return _permit(outside, asking, timeout, came=_result_of(asking.permit))
    except BaseException:
        outside.drop(asking)
        raise


async def _acquire_async(
    outside: Outside | Free, needs: Needs, limit: tuple[str, str], timeout: float | None
) -> Permit:
    asking = outside.ask(needs.text, limit, waits=timeout != 0)
    answer = asyncio.wrap_future(asking.permit)
    try:
        await asyncio.wait([answer], timeout=_answer_within(timeout))
        if not answer.done():
            outside.leave(asking)
            await asyncio.wait([answer], timeout=_ANSWER)
        return _permit(outside, asking, timeout, came=_result_of(answer))
    except GeneratorExit:  # the coroutine may be collected after its loop was closed
        outside.later(partial(outside.drop, asking))
        raise
    except BaseException:
        outside.drop(asking)
        raise


def _answer_within(timeout: float | None) -> float | None:
    # Timeout 0 means to wait for no permit, but still for the store's answer.
    return _ANSWER if timeout == 0 else timeout


def _result_of(answer: futures.Future[T] | asyncio.Future[T]) -> T:
    if not answer.done():
        raise StoreUnavailable("the store did not answer in time")
    return answer.result()


def _permit(outside: Outside | Free, asking: Asking, timeout: float | None, *, came: bool) -> Permit:
    if not came:
        limits = limits_text(asking.arrival.needs)
        raise NotAcquired(f"no permit of limit {limits!r} " + ("is free" if timeout == 0 else "came in time"))
    return Permit(outside, asking)
