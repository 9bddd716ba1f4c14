"""A permit that is held outside of tasks, and how one gets it."""

from __future__ import annotations

import asyncio
import time
import uuid
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import ref

from celery_throttle.core.policy import limits_text
from celery_throttle.errors import NotAcquired, StoreUnavailable
from celery_throttle.primitives.lease.sync import RenewableLease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_throttle.core.policy import Needs
    from celery_throttle.permits.outside import Asking, Outside
    from celery_throttle.store.calls import Arrival

__all__ = ["Permit", "acquire", "acquire_async"]

#: Seconds to wait for the answer of a store that may have to be connected to first.
_ANSWER = 5.0
#: The same from Python 3.11 on.
_TIMEOUTS = (FutureTimeoutError, asyncio.TimeoutError)


class Permit(RenewableLease):
    """A permit held outside of a task; in a ``with`` statement it is given back at the end of the block.

    It is renewed by a thread while it is held. Leaving the block raises `LeaseLost` if it was lost meanwhile.

    Attributes:
        identity: the limit, with its key.
        owner: the name of the holder in the store.
        lost: whether somebody else may have it.
        lease_left: seconds that are left for certain.
    """

    def __init__(self, outside: Outside, arrival: Arrival, started: float) -> None:
        limits, deadline = limits_text(arrival.needs), started + outside.lease
        super().__init__(limits, arrival.task, seconds=outside.lease, deadline=deadline, on_lost=None)
        self._outside, self._arrival = outside, arrival
        outside.hold(arrival, _renewing(ref(self)))

    def renew(self, lease: float | None = None) -> bool:  # noqa: ARG002 - all permits last ``throttle_lease``
        """Let the lease begin anew; always True.

        Raises:
            LeaseLost: it is not held any more.
            StoreUnavailable: the store did not answer.
        """
        self._check_held()
        started = time.monotonic()
        if not self._outside.renew(self._arrival):
            self._check_held()
            raise self._lose()
        self._deadline = started + self._seconds
        return True

    def release(self) -> bool:
        """Give it back; False if it was lost before. Again: the same answer.

        Raises:
            StoreUnavailable: the store did not answer; it is told when it does, or the lease ends.
        """
        self._releasing = True
        if self._released is None:
            lost = self.lost
            with _in_time():
                self._outside.release(self._arrival).result(_ANSWER)
            self._released = not lost
        return self._released

    def _renewed(self, begun: float | None) -> bool:
        if begun is None:
            if not self._releasing:
                self._lose()
        else:
            self._deadline = begun + self._seconds
        return True


def _renewing(permit: ref[Permit]) -> Callable[[float | None], bool]:
    """Return what is told of renewals; nobody wants a permit that was dropped without being given back."""

    def renewed(begun: float | None) -> bool:
        there = permit()
        return there is not None and there._renewed(begun)  # noqa: SLF001

    return renewed


@contextmanager
def _in_time() -> Iterator[None]:
    try:
        yield
    except _TIMEOUTS:
        raise StoreUnavailable("the store did not answer in time") from None


def acquire(outside: Outside, needs: Needs, limit: tuple[str, str], timeout: float | None) -> Permit:
    """Return a permit that came in so many seconds; see ``Limit.acquire``."""
    started = time.monotonic()
    asking = outside.ask(f"outside:{uuid.uuid4()}", needs.text, limit, waits=timeout != 0)
    try:
        came = asking.permit.result(_patience(timeout, started))
    except _TIMEOUTS:
        with _in_time():
            came = outside.leave(asking).result(_ANSWER)
    except StoreUnavailable:
        raise
    except BaseException:
        _leave_quietly(outside, asking)
        raise
    return _permit(outside, asking, came=came)


async def acquire_async(outside: Outside, needs: Needs, limit: tuple[str, str], timeout: float | None) -> Permit:
    """As `acquire`, for asyncio."""
    started = time.monotonic()
    asking = outside.ask(f"outside:{uuid.uuid4()}", needs.text, limit, waits=timeout != 0)
    waited: Any = asyncio.wrap_future(asking.permit)
    try:
        came = await asyncio.wait_for(asyncio.shield(waited), _patience(timeout, started))
    except _TIMEOUTS:
        with _in_time():
            came = await asyncio.wait_for(asyncio.wrap_future(outside.leave(asking)), _ANSWER)
    except StoreUnavailable:
        raise
    except BaseException:
        _leave_quietly(outside, asking)
        raise
    return _permit(outside, asking, came=came)


def _patience(timeout: float | None, started: float) -> float | None:
    if timeout is None:
        return None
    # Not to wait means to wait for no permit; the answer takes its time.
    return _ANSWER if timeout == 0 else max(timeout - (time.monotonic() - started), 0.0)


def _leave_quietly(outside: Outside, asking: Asking) -> None:
    """Leave the line, and give back what comes at the last moment."""

    def give_back(left: object) -> None:
        if left.result():  # type: ignore[attr-defined]
            outside.release(asking.arrival)

    outside.leave(asking).add_done_callback(give_back)


def _permit(outside: Outside, asking: Asking, *, came: bool) -> Permit:
    if not came:
        limits = limits_text(asking.arrival.needs)
        raise NotAcquired(f"no permit of limit {limits!r} " + ("came in time" if asking.waits else "is free"))
    return Permit(outside, asking.arrival, time.monotonic())
