"""Permits that are held outside of tasks, and functions to acquire them."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent import futures
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakMethod

from redis.exceptions import ResponseError

from celery_throttle.core.policy import limits_text
from celery_throttle.errors import ConfigurationError, NotAcquired, StoreUnavailable
from celery_throttle.permits.free import Free
from celery_throttle.primitives.checks import shown
from celery_throttle.primitives.driving import settled
from celery_throttle.primitives.lease import RenewableLease

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from celery_throttle.core.policy import Needs
    from celery_throttle.permits.line import Asking
    from celery_throttle.permits.outside import Outside

__all__ = ["Permit", "acquire"]

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
        return super().renew()

    def release(self) -> bool:
        """Give the permit back; return False if it was lost before. A second call returns the same.

        Raises:
            ConfigurationError: the permit was taken before this process was forked.
            StoreUnavailable: the store did not answer; the permit is given back when it does, or when the lease ends.
        """
        self._check_process()
        return super().release()

    def __enter__(self) -> Self:
        self._check_process()
        return super().__enter__()

    async def leave(self, error: BaseException | None) -> None:
        """Leave the ``async with`` block, given the error that the block raised; a cancelled task gives back, too."""
        await self._leave(error, partial(self._release, partial(self._give_back, awaits=True)))

    async def _leave(self, error: BaseException | None, release: Callable[[], Any]) -> None:
        if self._is_forked:
            return  # the parent process still holds the permit
        if isinstance(error, GeneratorExit):
            self._forget()
        else:
            await super()._leave(error, release)

    async def _extend(self, seconds: float) -> bool:  # noqa: ARG002 - as in `renew`
        return self._outside.renew(self._arrival)

    async def _give_back(self, *, awaits: bool = False) -> bool:
        lost = self.lost
        await _answer_of(self._outside.release(self._arrival), awaits=awaits)
        return not lost

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

    def _renewed(self, begun: float | None) -> None:
        if begun is not None:
            self._deadline = begun + self._seconds
        elif not self._releasing:
            self._lose()


async def acquire(
    outside: Outside | Free, needs: Needs, limit: tuple[str, str], timeout: float | None, *, awaits: bool
) -> Permit:
    """Return a permit that came within ``timeout`` seconds, see ``Limit.acquire``; without ``awaits`` for `run`."""
    patience = _Patience(timeout)
    while True:
        try:
            return await _acquire(outside, needs, limit, patience.left, awaits=awaits)
        except StoreUnavailable as error:
            if permit := patience.without_store(outside, needs, limit, error):
                return permit
        await settled((asyncio if awaits else time).sleep(_AGAIN))


class _Patience:
    """Counts down the ``timeout`` of a caller (None: for ever), and decides how to go on without the store."""

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


async def _acquire(
    outside: Outside | Free, needs: Needs, limit: tuple[str, str], timeout: float | None, *, awaits: bool
) -> Permit:
    asking = outside.ask(needs.text, limit, waits=timeout != 0)
    answer = asyncio.wrap_future(asking.permit) if awaits else asking.permit
    try:
        # Timeout 0 means to wait for no permit, but still for the store's answer.
        await _wait(answer, _ANSWER if timeout == 0 else timeout)
        if not answer.done():
            outside.leave(asking)
        return _permit(outside, asking, timeout, came=await _answer_of(answer))
    except GeneratorExit:  # the coroutine may be collected after its loop was closed
        outside.later(partial(outside.drop, asking))
        raise
    except BaseException:
        outside.drop(asking)
        raise


async def _wait(answer: futures.Future[T] | asyncio.Future[T], timeout: float | None) -> None:
    if isinstance(answer, futures.Future):
        futures.wait([answer], timeout)
    else:
        await asyncio.wait([answer], timeout=timeout)


async def _answer_of(answer: futures.Future[T] | asyncio.Future[T], *, awaits: bool = False) -> T:
    if awaits and isinstance(answer, futures.Future):
        answer = asyncio.wrap_future(answer)  # all threads of the loop's executor may wait for this very permit
    await _wait(answer, _ANSWER)
    if not answer.done():
        raise StoreUnavailable("the store did not answer in time")
    return answer.result()


def _permit(outside: Outside | Free, asking: Asking, timeout: float | None, *, came: bool) -> Permit:
    if not came:
        limits = limits_text(asking.arrival.needs)
        raise NotAcquired(f"no permit of limit {limits!r} " + ("is free" if timeout == 0 else "came in time"))
    return Permit(outside, asking)
