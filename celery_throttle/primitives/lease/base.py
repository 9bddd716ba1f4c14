"""What the holder of something knows about its lease: no I/O."""

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

#: How long a release that is sent again gets the same answer: redis-py's own retries take up to a minute.
RECEIPT_MS = 60_000
#: How many times a lease is renewed while it lasts.
RENEWALS = 3
#: Seconds after which a waiting acquire looks by itself, should a hint be lost.
_LOOK_AGAIN = 2.0


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
        self._entered = False
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

    def _enter(self) -> None:
        """Begin its ``with`` block, the only one: the end of a block gives it back."""
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

    def _next_renewal(self) -> float:
        """Return after how many seconds to renew it."""
        return self._seconds / RENEWALS

    def _pause_after(self, error: Exception) -> float | None:
        """Return how long to wait after a renewal that failed, None if it is no use any more."""
        if self._releasing:
            return None
        if isinstance(error, LeaseLost) or self.lease_left <= 0:
            self._lose()
            return None
        logger.warning("celery_throttle: cannot renew %s, trying again: %s", shown(self.identity), error)
        return min(1.0, self._seconds / 10, self.lease_left)


def next_look(lease_left: float) -> float:
    """Return after how many seconds to look again, should no hint come: when the lease ends, or now and then."""
    # A little late and not all at once; never at once, which would be a busy loop.
    spread = random.uniform(0.002, 0.02)  # noqa: S311 - no secret
    return min(lease_left, _LOOK_AGAIN) + spread


def store_time(microseconds: int) -> datetime:
    """Return a time of the store's clock."""
    return datetime.fromtimestamp(microseconds / 1e6, timezone.utc)
