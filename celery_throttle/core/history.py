"""What is counted of a limit: how many started, how long they waited, what became of them.

Counts are kept in rings of slots, one for each minute and one for each quarter of an hour; a slot is used again when
its ring has come around. One slot more counts for ever. Each has the same places, as in ``add_history.lua``.
"""

from __future__ import annotations

from bisect import bisect_left
from enum import IntEnum
from typing import NamedTuple

__all__ = ["MINUTES", "QUARTERS", "RINGS", "SLOT", "TOTALS", "WAITS", "Place", "Ring", "place_of"]

#: Numbers of a slot; the first is which period it counts.
SLOT = 32
#: Seconds, the upper bounds of the places that count waits; who waited longer than the last is counted there, too.
WAITS: tuple[float, ...] = tuple(0.02 * 2**number for number in range(19))


class Place(IntEnum):
    """Where in a slot something is counted."""

    AT_ONCE = 1  #: started without waiting in line
    WAITED = 2  #: started after a wait: the first of as many places as `WAITS` has
    PARKED = 21
    ENDED = 22
    FAILED = 23  #: of those that ended
    RUN_TIME = 24  #: of those that ended, in ms
    RECLAIMED = 25
    SENT_BACK = 26  #: by RateLimited
    REFUSED = 27  #: not parked, since as many were as may be
    DUPLICATES = 28
    HELD_MOST = 29  #: one more than the most that were held when somebody counted; 0: nobody looked
    PARKED_MOST = 30  #: the same, of those that waited
    WAIT_TIME = 31  #: of those that started, in ms


class Ring(NamedTuple):
    """Slots of so many seconds each; 0: one slot that is never used again."""

    name: str
    seconds: int
    slots: int


MINUTES = Ring("minutes", 60, 60)
QUARTERS = Ring("quarters", 900, 96)
TOTALS = Ring("totals", 0, 1)
#: In the order in which ``add_history.lua`` has them.
RINGS = (MINUTES, QUARTERS, TOTALS)


def place_of(waited: float) -> int:
    """Return where a start after so many seconds is counted."""
    if waited <= 0:
        return Place.AT_ONCE
    return Place.WAITED + min(bisect_left(WAITS, waited), len(WAITS) - 1)
