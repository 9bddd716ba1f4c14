"""What the holder of a lock knows about its lease, and a thread that renews it."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from abc import ABC, abstractmethod
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from celery_throttle.errors import LeaseLost
from celery_throttle.primitives.lock_calls import shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["Lease", "RenewableLease"]

logger = logging.getLogger(__name__)


class Lease:
    """A lease by the holder's own clock: it says it is over a little before the store does, never after.

    Args:
        identity: what is held.
        owner: by whom.
        seconds: how long a renewal lasts.
        deadline: until when it lasts now, on the clock of ``time.monotonic``.
        on_lost: called once, with this object, when the lease is found to be lost.
    """

    def __init__(
        self,
        identity: str | bytes,
        owner: str,
        *,
        seconds: float,
        deadline: float,
        on_lost: Callable[[Any], object] | None,
    ) -> None:
        self.identity, self.owner = identity, owner
        self._seconds, self._deadline, self._on_lost = seconds, deadline, on_lost
        self._guard = threading.Lock()
        self._releasing = False
        self._gone = False
        #: what became of the release; None before
        self._released: bool | None = None

    def __repr__(self) -> str:
        state = "lost" if self.lost else "released" if self._released else f"{self.lease_left:.1f} s left"
        return f"<{type(self).__name__} {shown(self.identity)} {state}>"

    @property
    def lost(self) -> bool:
        """Whether somebody else may have it: the store said so, or the lease was not renewed in time."""
        return self._gone or (self._released is None and time.monotonic() >= self._deadline)

    @property
    def lease_left(self) -> float:
        """Seconds that are left for certain."""
        if self._gone or self._released is not None:
            return 0.0
        return max(0.0, self._deadline - time.monotonic())

    def _check_held(self) -> None:
        if self._releasing:
            raise LeaseLost(f"{shown(self.identity)} was released and cannot be renewed")
        if self._gone:
            raise self._error()

    def _lose(self) -> LeaseLost:
        """Note that it is lost, tell once, return the error to raise."""
        with self._guard:
            first, self._gone = not self._gone, True
        if first:
            logger.warning("lease_lost: %s", self._error(), extra={"action": "lease_lost", "owner": self.owner})
            self._tell()
        return self._error()

    def _tell(self) -> None:
        try:
            if self._on_lost is not None:
                self._on_lost(self)
        except Exception:
            # It may be called in the renewing thread, where nobody else would hear of it.
            logger.exception("celery_throttle: on_lost of %s failed", shown(self.identity))

    def _error(self) -> LeaseLost:
        return LeaseLost(f"{shown(self.identity)} is not held by {self.owner} any more")

    def _pause_after(self, error: Exception) -> float | None:
        """Return how long to wait after a renewal that failed, None if it is no use any more."""
        if self._releasing:
            return None
        if isinstance(error, LeaseLost) or self.lease_left <= 0:
            self._lose()
            return None
        logger.warning("celery_throttle: cannot renew %s, trying again: %s", shown(self.identity), error)
        return min(1.0, self._seconds / 10, self.lease_left)


class RenewableLease(Lease, ABC):
    """A lease that one can give back, by leaving its ``with`` block too, and that a thread can renew."""

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
        # Its put() may be called from within the garbage collector; that of other queues and events must not.
        self._stop: SimpleQueue[None] = SimpleQueue()

    def __enter__(self) -> Self:
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
        """Let the lease end that many seconds from now."""

    @abstractmethod
    def release(self) -> bool:
        """Give it back."""

    def keep(self) -> None:
        """Renew at a third of the lease, until it is released, lost or forgotten by the program."""
        stop = self._stop
        held = weakref.ref(self, lambda _: stop.put(None))
        threading.Thread(
            target=_keep, args=(held, stop, self._seconds / 3), name="celery_throttle-renew", daemon=True
        ).start()

    def renew_quietly(self) -> float | None:
        """Renew for the thread; return how long to wait until the next time, None if there is none."""
        try:
            self.renew()
        except Exception as error:  # noqa: BLE001 - whatever it is, a lease that is not renewed must be reported
            return self._pause_after(error)
        return self._seconds / 3


def _keep(held: weakref.ref[RenewableLease], stop: SimpleQueue[None], pause: float | None) -> None:
    while pause is not None:
        try:
            stop.get(timeout=pause)
        except Empty:
            # In a function of its own, so that no reference stays behind while waiting.
            pause = _renew(held)
        else:
            return


def _renew(held: weakref.ref[RenewableLease]) -> float | None:
    lease = held()
    return lease.renew_quietly() if lease is not None else None
