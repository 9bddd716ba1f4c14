"""Leases renewed by a thread."""

from __future__ import annotations

import threading
import time
import weakref
from abc import ABC, abstractmethod
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from celery_throttle.primitives.checks import shown
from celery_throttle.primitives.lease.base import Lease, logger
from celery_throttle.store.scripts import execute

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from redis import Redis
    from typing_extensions import Self

    from celery_throttle.store.scripts import Call

__all__ = ["Held", "RenewableLease"]


class RenewableLease(Lease, ABC):
    """A lease with a release, also at the end of a ``with`` block, and a thread that can renew it."""

    def __init__(
        self,
        identity: str | bytes,
        owner: str,
        *,
        seconds: float,
        deadline: float,
        on_lost: Callable[[Any], object] | None,
    ) -> None:
        super().__init__(identity, owner, seconds=seconds, deadline=deadline, on_lost=on_lost)
        # A SimpleQueue, because its put() may run inside the garbage collector; other queues and events may not.
        self._stop: SimpleQueue[None] = SimpleQueue()

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._released is not None:
            return
        try:
            released = self.release()
        except Exception:
            if error is None:
                raise
            logger.warning("celery_throttle: cannot release %s", shown(self.identity), exc_info=True)
            return
        if error is None and not released:
            raise self._lose()

    @abstractmethod
    def renew(self, lease: float | None = None) -> bool:
        """Set the rest of the lease to ``lease`` seconds."""

    @abstractmethod
    def release(self) -> bool:
        """Release the lock or permit."""

    def keep(self) -> None:
        """Renew at each third of the lease, until it is released or lost, or has no references left."""
        stop = self._stop
        held = weakref.ref(self, lambda _: stop.put(None))
        threading.Thread(
            target=_keep, args=(held, stop, self._next_renewal()), name="celery_throttle-renew", daemon=True
        ).start()

    def renew_quietly(self) -> float | None:
        """Renew for the thread; return the pause before the next renewal, None if there is none."""
        try:
            self.renew()
        except Exception as error:  # noqa: BLE001 - a lease that is not renewed must be reported after any error
            return self._pause_after(error)
        return self._next_renewal()


class Held(RenewableLease):
    """A lease on one server.

    Args:
        client: the client of the server.
        identity: the locked identity, or the name of the semaphore.
        owner: the name of the holder.
        seconds: how long a renewal lasts.
        deadline: the present end of the lease, on the clock of ``time.monotonic``.
        on_lost: called once, with this object, when the lease is found to be lost.
        renewal: returns the call that sets the rest of the lease to a number of seconds.
        giving_back: returns the call that releases it. Both calls return 0 if it is not held any more.
    """

    def __init__(
        self,
        client: Redis,
        identity: str | bytes,
        owner: str,
        *,
        seconds: float,
        deadline: float,
        on_lost: Callable[[Any], object] | None,
        renewal: Callable[[float], Call],
        giving_back: Callable[[], Call],
    ) -> None:
        super().__init__(identity, owner, seconds=seconds, deadline=deadline, on_lost=on_lost)
        self._client, self._renewal, self._giving_back = client, renewal, giving_back

    def renew(self, lease: float | None = None) -> bool:
        """Set the rest of the lease to ``lease`` seconds (by default as many as before); return True.

        A lost lease is an error and not a False, as in ``extend`` and ``reacquire`` of redis-py's lock.

        Raises:
            LeaseLost: the lease is not held any more.
            redis.exceptions.RedisError: Redis did not answer; the lease goes on as before, or was renewed.
        """
        self._check_held()
        seconds = self._seconds if lease is None else lease
        call = self._renewal(seconds)
        started = time.monotonic()
        if not execute(self._client, call):
            self._check_held()  # a release during the call is no loss
            raise self._lose()
        self._seconds, self._deadline = seconds, started + seconds
        return True

    def release(self) -> bool:
        """Release it; False, without any change, if it was not held any more. A second call returns the same.

        Raises:
            redis.exceptions.RedisError: Redis did not answer; call it again, or leave it to the end of the lease.
        """
        self._releasing = True
        self._stop.put(None)
        if self._released is None:
            released = bool(execute(self._client, self._giving_back()))
            if not released:
                self._lose()
            self._released = released
        return self._released


def _keep(held: weakref.ref[RenewableLease], stop: SimpleQueue[None], pause: float | None) -> None:
    while pause is not None:
        try:
            stop.get(timeout=pause)
        except Empty:
            # In a function of its own, so that no reference is left during the next wait.
            pause = _renew(held)
        else:
            return


def _renew(held: weakref.ref[RenewableLease]) -> float | None:
    lease = held()
    return lease.renew_quietly() if lease is not None else None
