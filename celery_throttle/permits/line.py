"""Callers that want, wait for or give back a permit, and the rows of a call to the store that they need."""

from __future__ import annotations

import time
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.store.exchange import DeliveryChange, Exchange
from celery_throttle.store.portions import MOST_ROWS, Portion, take_rows

if TYPE_CHECKING:
    from celery_throttle.store.exchange import Arrival
    from celery_throttle.store.exchange_reply import Reply

__all__ = ["NOT_USED", "USED", "Asking", "Batch", "fail", "settle"]

#: How a permit was used that is given back.
USED = Facts(began=True, message=Message.NOBODY, result=Result.SUCCESS)
NOT_USED = Facts(began=False, message=Message.NOBODY)


class Asking:
    """A caller that wants a permit.

    Attributes:
        arrival: the caller's row in the store; with the holder's nonce once the permit is granted.
        came: when the caller asked, on the clock of ``time.monotonic``.
        permit: the answer: whether the permit is granted, or an error.
        began: the earliest start of the lease, on the clock of ``time.monotonic``; 0 before the grant.
    """

    def __init__(self, arrival: Arrival, *, waits: bool) -> None:
        self.arrival, self._waits = arrival, waits
        self.came = time.monotonic()
        self.permit: Future[bool] = Future()
        self.began = 0.0

    @property
    def waits(self) -> bool:
        """Whether the caller waits in line if there is no permit now."""
        return self._waits and not self.permit.done()

    def leave(self) -> None:
        """Stop waiting in line."""
        self._waits = False

    def grant(self, nonce: str, began: float) -> bool:
        """Grant the permit under this nonce; return False if the caller has dropped it or has another answer."""
        self.arrival, self.began = self.arrival._replace(nonce=nonce), began
        return settle(self.permit, value=True)

    def drop(self) -> bool:
        """Drop the request for a permit; return whether the permit was granted and has to be given back."""
        return not self.permit.cancel() and self.permit.exception() is None and self.permit.result()


@dataclass
class Batch:
    """The rows of the next call, or of one call, and the callers and futures that its answers are for.

    Attributes:
        asking: callers that ask for a permit.
        lining: callers to be parked.
        leaving: callers that leave the line.
        ended: permits that are given back, each with a future for the store's answer.
        begun: when the call was put together, on the clock of ``time.monotonic``.
    """

    asking: list[Asking] = field(default_factory=list)
    lining: list[Asking] = field(default_factory=list)
    leaving: list[Asking] = field(default_factory=list)
    ended: list[tuple[DeliveryChange, Future[None]]] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)

    def __bool__(self) -> bool:
        return bool(self.asking or self.lining or self.leaving or self.ended)

    @property
    def arrived(self) -> list[Asking]:
        """The callers that ask or are to be parked, in the order of their rows."""
        return self.asking + self.lining

    def end(self, task: str, nonce: str, facts: Facts) -> Future[None]:
        """Give a permit back; return a future for the store's answer."""
        done: Future[None] = Future()
        self.ended.append((DeliveryChange("ended", task, 0, nonce, facts=facts), done))
        return done

    def fits(self, reply: Reply | None) -> None:
        """Raise ValueError unless the reply, if there is one, has an answer for each caller."""
        if reply is not None and len(reply.arrived) != len(self.arrived):
            raise ValueError("it has not as many answers as the call has callers")

    def fail(self, error: Exception) -> None:
        """Fail the callers that ask, leave or give back; those in line go on waiting."""
        for asking in self.asking + self.leaving:
            fail(asking.permit, error)
        for _, done in self.ended:
            fail(done, error)

    def take(self) -> Batch:
        """Take out the rows that fit in one call."""
        asked = (each.arrival.needs for each in (*self.asking[:MOST_ROWS], *self.lining[:MOST_ROWS]))
        others = (ended.needs for ended, _ in self.ended[:MOST_ROWS])
        portion = Portion(asked, others, ("" for _ in self.leaving[:MOST_ROWS]))
        asking, lining, leaving, ended = (
            take_rows(rows, portion.of(rows)) for rows in (self.asking, self.lining, self.leaving, self.ended)
        )
        lining = [each for each in lining if each.waits]  # a caller that left has a row in `leaving`
        return Batch(asking, lining, leaving, ended)

    def put_back(self, refused: Batch) -> None:
        """Send the rows that leave a line or give a permit back again, with the next call.

        An earlier copy of the refused call may be carried out later, so the permits that it may get are given back.
        """
        self.leaving[:0], self.ended[:0] = refused.leaving, refused.ended
        for asking in refused.asking:
            self.end(asking.arrival.task, asking.arrival.nonce, NOT_USED)

    def exchange(self, slots: int, lease: float) -> Exchange:
        """Return the rows of the call; a parked caller stays in line for one lease, unless its wait is renewed."""
        clock = time.monotonic()
        lining = []
        for each in self.lining:
            age = clock - each.came
            wait_ms = int((age + lease) * 1000)
            lining.append(each.arrival._replace(nonce="", message=b"-", wait_ms=wait_ms, outside=True, age=age))
        return Exchange(
            slots=slots,
            clock=clock,
            arrived=[each.arrival for each in self.asking] + lining,
            changed=[ended for ended, _ in self.ended],
            gone=[("revoked", each.arrival.task) for each in self.leaving],
        )


def settle(future: Future[Any], *, value: Any) -> bool:
    """Set a future's value; return False if the future was done or cancelled before."""
    with suppress(InvalidStateError):  # its loop's thread may cancel it at any moment
        future.set_result(value)
        return True
    return False


def fail(future: Future[Any], error: Exception) -> None:
    """Set a future's error, unless the future is done."""
    with suppress(InvalidStateError):
        future.set_exception(error)
