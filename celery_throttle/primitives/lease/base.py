"""The holder's view of a lease, without I/O."""

from __future__ import annotations

import logging
import random
import threading
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery_throttle.errors import ConfigurationError, LeaseLost
from celery_throttle.primitives.checks import shown

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RECEIPT_MS", "RENEWALS", "Lease", "logger", "next_look", "store_time"]

logger = logging.getLogger(__name__)

#: Milliseconds in which a repeated release gets the same answer, because redis-py's own retries take up to a minute.
RECEIPT_MS = 60_000
#: Renewals in the length of one lease.
RENEWALS = 3
#: Seconds after which a waiting acquire asks again, in case a hint was lost.
_LOOK_AGAIN = 2.0


class Lease:
    """A lease by the holder's own clock: it ends a little earlier than in the store, never later.

    Args:
        identity: the locked identity, or the name of the semaphore.
        owner: the name of the holder.
        seconds: how long a renewal lasts.
        deadline: the present end of the lease, on the clock of ``time.monotonic``.
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
        self._entered = False
        #: the result of the release; None before
        self._released: bool | None = None

    def __repr__(self) -> str:
        state = "lost" if self.lost else "released" if self._released else f"{self.lease_left:.1f} s left"
        return f"<{type(self).__name__} {shown(self.identity)} {state}>"

    @property
    def lost(self) -> bool:
        """Whether another holder may have it: the store reported it, or the lease was not renewed in time."""
        return self._gone or (self._released is None and time.monotonic() >= self._deadline)

    @property
    def lease_left(self) -> float:
        """Seconds that certainly are left of the lease."""
        if self._gone or self._released is not None:
            return 0.0
        return max(0.0, self._deadline - time.monotonic())

    def _enter(self) -> None:
        """Begin the ``with`` block. A second block is refused, because the end of each block releases the lease."""
        if self._releasing:
            raise LeaseLost(f"{shown(self.identity)} was released, and is not held in this block: acquire it again")
        if self.lost:
            raise self._lose()
        if self._entered:
            raise ConfigurationError(
                f"{shown(self.identity)} is in a with block already, and the end of the inner one would release it: "
                f"acquire one more, or take the inner block away"
            )
        self._entered = True

    def _check_held(self) -> None:
        if self._releasing:
            raise LeaseLost(f"{shown(self.identity)} was released and cannot be renewed")
        if self._gone:
            raise self._error()

    def _lose(self) -> LeaseLost:
        """Mark the lease as lost, log and call ``on_lost`` the first time, and return the error to raise."""
        with self._guard:
            first, self._gone = not self._gone, True
        if first:
            logger.warning("lease_lost: %s", self._error(), extra={"action": "lease_lost", "owner": self.owner})
            self._call_on_lost()
        return self._error()

    def _call_on_lost(self) -> None:
        try:
            if self._on_lost is not None:
                self._on_lost(self)
        except Exception:
            # Logged, because in the renewing thread no caller would get the error.
            logger.exception("celery_throttle: on_lost of %s failed", shown(self.identity))

    def _error(self) -> LeaseLost:
        return LeaseLost(f"{shown(self.identity)} is not held by {self.owner} any more")

    def _next_renewal(self) -> float:
        """Return the seconds until the next renewal."""
        return self._seconds / RENEWALS

    def _pause_after(self, error: Exception) -> float | None:
        """Return the seconds to wait after a failed renewal, None if the lease is released or lost."""
        if self._releasing:
            return None
        if isinstance(error, LeaseLost) or self.lease_left <= 0:
            self._lose()
            return None
        logger.warning("celery_throttle: cannot renew %s, trying again: %s", shown(self.identity), error)
        return min(1.0, self._seconds / 10, self.lease_left)


def next_look(lease_left: float) -> float:
    """Return the seconds to wait for a hint: until the lease ends, and at most `_LOOK_AGAIN`."""
    # A random addition, so that callers do not all ask at once, and never 0, which would be a busy loop.
    spread = random.uniform(0.002, 0.02)  # noqa: S311 - no secret
    return min(lease_left, _LOOK_AGAIN) + spread


def store_time(microseconds: int) -> datetime:
    """Return a time of the store's clock as a datetime."""
    return datetime.fromtimestamp(microseconds / 1e6, timezone.utc)
