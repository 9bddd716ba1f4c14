"""A circuit breaker: after a call failed, refuse further calls for a moment, so that they do not wait for a timeout."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from time import monotonic

__all__ = ["Breaker"]

#: A call that failed after one second blocks other calls for five: callers wait a sixth of their time at most.
_TIMES = 5.0
#: The most seconds for which calls are refused.
_LONGEST = 10.0
#: Seconds after which another call may try, in case the trying call never ends.
_TRYING = 30.0
#: Seconds after which a lasting outage is logged again.
_LOG_EVERY = 60.0


@dataclass(frozen=True)
class _Open:
    """The state in which calls are refused.

    Attributes:
        why: the error of the last call.
        until: the time from which one call may try again, on the monotonic clock.
        turn: has one item; the caller that pops it may try.
    """

    why: str
    until: float
    turn: list[None] = field(default_factory=lambda: [None])


class Breaker:
    """Closed while the store answers; open for a moment after a call failed; then one call may try.

    The breaker has no lock, because a process may be forked while another thread holds the lock.
    """

    def __init__(self) -> None:
        self._open: _Open | None = None
        self._logged_at = -math.inf

    @property
    def why(self) -> str:
        """The error of the last call while calls are refused; "" if a call may be made."""
        return self._open.why if self._open is not None and monotonic() < self._open.until else ""

    def refusal(self) -> str | None:
        """Return why a call is refused now; None if the caller may call.

        After a failure, one caller at a time may try.
        """
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
        """Return the start time of a call, for `failed`."""
        return monotonic()

    def failed(self, why: str, begun: float) -> None:
        """Record a call that failed; ``begun`` is its start. The longer it took, the longer others are refused."""
        now = monotonic()
        self._open = _Open(why, now + min(_TIMES * (now - begun), _LONGEST))

    def answered(self) -> None:
        """Record an answered call: close the breaker."""
        if self._open is not None:
            self._open, self._logged_at = None, -math.inf

    def to_be_logged(self) -> bool:
        """Return whether to log the outage: once at its start, and again each minute."""
        now = monotonic()
        first = now - self._logged_at >= _LOG_EVERY
        if first:
            self._logged_at = now
        return first
