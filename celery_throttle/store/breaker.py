"""Remember for a moment that a store did not answer: a circuit breaker, so that not every call waits for it anew."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from time import monotonic

__all__ = ["Breaker"]

#: A call that failed after one second keeps others from trying for five: callers spend a sixth of their time at most.
_TIMES = 5.0
#: Seconds that it keeps them at the most.
_LONGEST = 10.0
#: Seconds after which another call may try, should the one that tries never end.
_TRYING = 30.0
#: Seconds after which an outage that goes on is logged again.
_LOG_EVERY = 60.0


@dataclass(frozen=True)
class _Open:
    """Calls are refused.

    Attributes:
        why: what the last one failed with.
        until: when one may try again, on the monotonic clock.
        turn: has an item for the one that does.
    """

    why: str
    until: float
    turn: list[None] = field(default_factory=lambda: [None])


class Breaker:
    """Closed while calls are answered; open for a moment after one was not; then one call finds out.

    Without a lock: a process may be forked while another thread has it.
    """

    def __init__(self) -> None:
        self._open: _Open | None = None
        self._logged_at = -math.inf

    @property
    def why(self) -> str:
        """What the store failed with a moment ago; "" where a call may be made."""
        return self._open.why if self._open is not None and monotonic() < self._open.until else ""

    def refusal(self) -> str | None:
        """Return why a call must not be made now; None if it may be, by one caller at a time while it may fail."""
        is_open = self._open
        if is_open is None:
            return None
        if monotonic() < is_open.until:
            return is_open.why
        try:
            is_open.turn.pop()
        except IndexError:
            return is_open.why
        self._open = _Open(is_open.why, monotonic() + _TRYING)
        return None

    def begin(self) -> float:
        """Return the time at which a call begins, for `failed`."""
        return monotonic()

    def failed(self, why: str, begun: float) -> None:
        """A call that began then was not answered. The longer that took, the longer others are kept from trying."""
        now = monotonic()
        self._open = _Open(why, now + min(_TIMES * (now - begun), _LONGEST))

    def answered(self) -> None:
        """A call was answered."""
        if self._open is not None:
            self._open, self._logged_at = None, -math.inf

    def to_be_logged(self) -> bool:
        """Whether to log that calls go without an answer: once in an outage, and again each minute."""
        now = monotonic()
        first = now - self._logged_at >= _LOG_EVERY
        if first:
            self._logged_at = now
        return first
