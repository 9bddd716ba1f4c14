"""The counters of a limit: starts, waits, outcomes.

Counters are kept in rings of slots: one ring has a slot for each minute, another one for each quarter of an hour. A
slot is used again when its ring has come around. One more slot keeps totals. All slots have the same counters, as in
``add_history.lua``.
"""

from __future__ import annotations

from bisect import bisect_left
from enum import IntEnum
from typing import NamedTuple

__all__ = ["MINUTES", "QUARTERS", "RINGS", "SLOT", "TOTALS", "WAITS", "Place", "Ring", "place_of"]

#: Numbers in a slot; the first is the number of the period that the slot counts.
SLOT = 32
#: Upper bounds of the counters of waits, in seconds; the last counter includes all longer waits.
WAITS: tuple[float, ...] = tuple(0.02 * 2**number for number in range(19))


class Place(IntEnum):
    """Positions of counters in a slot."""

    AT_ONCE = 1  #: started without waiting in line
    WAITED = 2  #: started after a wait: the first of as many counters as `WAITS` has bounds
    PARKED = 21
    ENDED = 22
    FAILED = 23  #: included in ENDED
    RUN_TIME = 24  #: of ended runs, in ms
    RECLAIMED = 25
    SENT_BACK = 26  #: by RateLimited
    REFUSED = 27  #: not parked, because ``max_parked`` was reached
    DUPLICATES = 28
    HELD_MOST = 29  #: one more than the highest count of held permits; 0: never counted
    PARKED_MOST = 30  #: the same for parked tasks
    WAIT_TIME = 31  #: of started runs, in ms


class Ring(NamedTuple):
    """Slots of ``seconds`` each; 0 for one slot that never starts again at zero."""

    name: str
    seconds: int
    slots: int


MINUTES = Ring("minutes", 60, 60)
QUARTERS = Ring("quarters", 900, 96)
TOTALS = Ring("totals", 0, 1)
#: In the order in which ``add_history.lua`` has them.
RINGS = (MINUTES, QUARTERS, TOTALS)


def place_of(waited: float) -> int:
    """Return the position of the counter for a start after a wait of ``waited`` seconds."""
    if waited <= 0:
        return Place.AT_ONCE
    return Place.WAITED + min(bisect_left(WAITS, waited), len(WAITS) - 1)
