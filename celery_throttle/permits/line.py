"""Who wants a permit, waits for one or gives one back, and what a call to the store says of them."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_throttle.store.exchange import Exchange
from celery_throttle.store.portions import MOST_ROWS, Portion, take_rows

if TYPE_CHECKING:
    from celery_throttle.store.exchange import Arrival, Ended

__all__ = ["Asking", "Batch", "fail", "settle"]


class Asking:
    """Somebody who wants a permit.

    Attributes:
        arrival: as the store knows it; with its nonce once it holds.
        came: when it did, on the clock of ``time.monotonic``.
        permit: set to whether it holds now, or to an error.
        began: when its lease did at the earliest, once it holds, on the clock of ``time.monotonic``.
    """

    def __init__(self, arrival: Arrival, *, waits: bool) -> None:
        self.arrival, self._waits = arrival, waits
        self.came = time.monotonic()
        self.permit: Future[bool] = Future()
        self.began = 0.0

    @property
    def waits(self) -> bool:
        """Whether it gets in line if there is no permit now."""
        return self._waits and not self.permit.done()

    def leave(self) -> None:
        """It waits no longer."""
        self._waits = False

    def grant(self, nonce: str, began: float) -> bool:
        """It holds now, under this nonce; False if nobody wants that any more."""
        self.arrival, self.began = self.arrival._replace(nonce=nonce), began
        return settle(self.permit, value=True)

    def drop(self) -> bool:
        """Nobody wants it any more; whether it holds."""
        return not self.permit.cancel() and self.permit.exception() is None and self.permit.result()


@dataclass
class Batch:
    """What is to be said, or said in one call, and whom the answers are for.

    Attributes:
        asking: who asks.
        lining: who is to be parked.
        leaving: who leaves the line.
        ended: what is given back, each with who hears that the store knows.
        begun: when the call was put together, on the clock of ``time.monotonic``.
    """

    asking: list[Asking] = field(default_factory=list)
    lining: list[Asking] = field(default_factory=list)
    leaving: list[Asking] = field(default_factory=list)
    ended: list[tuple[Ended, Future[None]]] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)

    def __bool__(self) -> bool:
        return bool(self.asking or self.lining or self.leaving or self.ended)

    def take(self) -> Batch:
        """Take out what fits in one call."""
        asked = (each.arrival.needs for each in (*self.asking[:MOST_ROWS], *self.lining[:MOST_ROWS]))
        others = (ended.needs for ended, _ in self.ended[:MOST_ROWS])
        portion = Portion(asked, others, ("" for _ in self.leaving[:MOST_ROWS]))
        asking, lining, leaving, ended = (
            take_rows(rows, portion.of(rows)) for rows in (self.asking, self.lining, self.leaving, self.ended)
        )
        lining = [each for each in lining if each.waits]  # whoever left is among the others, too
        return Batch(asking, lining, leaving, ended)

    def put_back(self, refused: Batch) -> None:
        """Say again who gives something back."""
        self.leaving[:0], self.ended[:0] = refused.leaving, refused.ended

    def exchange(self, slots: int, lease: float) -> Exchange:
        """Return what the call says; a place in line lasts for one lease, unless it is renewed."""
        wait_ms, clock = int(lease * 1000), time.monotonic()
        return Exchange(
            slots=slots,
            clock=clock,
            ended=[ended for ended, _ in self.ended],
            revoked=[each.arrival.task for each in self.leaving],
            asked=[each.arrival for each in self.asking],
            parked=[
                each.arrival._replace(nonce="", message=b"-", wait_ms=wait_ms, outside=True, age=clock - each.came)
                for each in self.lining
            ],
        )


def settle(future: Future[Any], *, value: Any) -> bool:
    """Give the value to who waits for it; False if nobody does."""
    if future.done():
        return False
    future.set_result(value)
    return True


def fail(future: Future[Any], error: Exception) -> None:
    """Give the error to who waits, if anybody does."""
    if not future.done():
        future.set_exception(error)
