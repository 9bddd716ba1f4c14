"""Permits outside of tasks, by the same calls that workers make: to the store this process is one more worker.

One thread makes the calls, one at a time, for all callers that ask, wait, hold or give back. The thread ends when
there are no such callers.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import socket
import threading
import time
import uuid
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from redis.exceptions import ResponseError

from celery_throttle.clients import not_asked, store_client
from celery_throttle.core.naming import outside_queue, worker_name
from celery_throttle.core.policy import limits_text
from celery_throttle.core.sites import Sites
from celery_throttle.errors import NotAcquired, StoreUnavailable
from celery_throttle.permits.bell import Bell
from celery_throttle.permits.declarations import Declarations
from celery_throttle.permits.line import NOT_USED, USED, Asking, Batch, fail, settle
from celery_throttle.permits.turns import Turns
from celery_throttle.settings import settings_of
from celery_throttle.store.exchange import Arrival
from celery_throttle.store.exchange_reply import Answer, Overtaken, read_exchanged
from celery_throttle.store.portions import MOST_RENEWED, take_rows
from celery_throttle.store.reading import read
from celery_throttle.store.servers.client import make_client
from celery_throttle.tasks.reap import report_reclaimed

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from weakref import WeakMethod

    from celery_throttle.store.exchange import Exchange
    from celery_throttle.store.exchange_reply import Reply

    Renewed = WeakMethod[Callable[[float | None], None]]

__all__ = ["Outside"]

logger = logging.getLogger(__name__)

#: Seconds until the store is asked again after it did not answer.
_AGAIN = 0.5
#: Seconds between two calls for the callers that wait, when no hint comes.
_LOOK_EVERY = 2.0
#: Seconds between two renewals of held permits, at the most. A store that was emptied grants nothing for four seconds,
#: so that holders put their permits back.
_RENEW_EVERY = 2.0
#: How often a renewal begins again because the store's data has begun anew.
_BIRTHS = 3

#: Answers of renew.lua for a permit that is held: renewed, or put back.
_HELD = (1, 2)


class Outside:
    """Asks for permits of one group of an app's limits, waits in line, renews, gives back; safe to use in threads.

    Attributes:
        process: the id of the process that made it.
        lease: seconds that a permit lasts without renewal.
        on_store_error: the app's ``throttle_on_store_error``.
        sites: the sites of this process.
    """

    def __init__(self, app: Any, group: str | None) -> None:
        self.process = os.getpid()
        self._worker = worker_name(socket.gethostname())
        self._queue = outside_queue(self._worker)
        client, settings = store_client(app, group), settings_of(app)
        self.sites = Sites(settings.sites)
        self._call, self._store, self.lease = client.ask, replace(client.store, sites=self.sites), client.store.lease
        self._breaker, self._report_reclaimed = client.breaker, partial(report_reclaimed, app, client)
        self._declarations = Declarations(client)
        self.on_store_error, self._unthrottled = settings.on_store_error, False
        self._bell = Bell(make_client(settings.url, self._store.keys), self._store.keys.wake, self._queue, self.sites)
        # For all threads, under the guard.
        self._guard = threading.Lock()
        self._turns = Turns(self._turn, self._has_to_stay, self._bell, self._guard)
        self._nonces = itertools.count(1)
        self._ends = False
        self._next = Batch()
        #: By task id: each request for a permit, until the caller holds the permit or has dropped the request. Weakly,
        #: because a caller that is collected gives back by `later`.
        self._asked: WeakValueDictionary[str, Asking] = WeakValueDictionary()
        self._held: dict[str, tuple[Arrival, Renewed]] = {}
        # The garbage collector may call put() at any moment; the guard could be held then.
        self._later: SimpleQueue[Callable[[], object]] = SimpleQueue()
        # For the thread alone.
        self._number = self._read = 0  # the last call, and the last one whose answer was read
        self._under_way: tuple[Batch, Exchange] | None = None
        self._waiting: dict[str, Asking] = {}
        self._look_at, self._renewed_at = 0.0, -math.inf

    def ask(self, needs: str, limit: tuple[str, str], *, waits: bool) -> Asking:
        """Ask for a permit.

        Args:
            needs: buckets and costs, in the text form of needs.lua.
            limit: name and declaration, which are sent if the store does not have the limit.
            waits: whether to wait in line if there is no permit now.

        Raises:
            StoreUnavailable: the store was just away, and this caller does not wait for it, or no thread starts.
            RuntimeError: the program ends, and has given its permits back.
        """
        if (why := self._breaker.why) and not (waits and self.on_store_error == "hold"):
            raise not_asked(why)
        nonce = f"{self._worker}:{next(self._nonces):x}"
        asking = Asking(Arrival(f"outside:{uuid.uuid4()}", needs, self._queue, nonce=nonce), waits=waits)
        with self._guard:
            if self._ends:
                raise RuntimeError(f"Limit {limit[0]}: no permits are given any more, since the program ends")
            self._turns.begin()  # first: without a thread nothing of this request may be left
            self._declarations.add(*limit)
            self._next.asking.append(asking)
            self._asked[asking.arrival.task] = asking
        self._bell.ring()
        return asking

    def leave(self, asking: Asking) -> None:
        """Stop waiting; ``asking.permit`` then gets the answer, True if the permit came at the last moment."""
        with self._guard:
            asking.leave()
            if not asking.permit.done():
                self._next.leaving.append(asking)
        self._turns.go_on()

    def drop(self, asking: Asking) -> None:
        """Drop a request, and give its permit back, also if the permit comes later."""
        self.leave(asking)
        with self._guard:
            self._asked.pop(asking.arrival.task, None)
            if asking.drop():
                self._next.end(asking.arrival.task, asking.arrival.nonce, NOT_USED)
        self._turns.go_on()

    def log_unthrottled(self, limits: str, error: StoreUnavailable) -> None:
        """Log once in each outage that permits are not counted."""
        if not self._unthrottled:
            self._unthrottled = True
            logger.warning(
                "celery_throttle: permits of limit %s are not counted while the store is out of reach, since "
                "throttle_on_store_error is 'run': %s",
                limits, error,
            )  # fmt: skip

    def later(self, give_back: Callable[[], object]) -> None:
        """Call `drop` or `release` in the thread, because the garbage collector must not wait for the guard."""
        self._later.put(give_back)
        self._bell.ring()

    def hold(self, arrival: Arrival, renewed: Renewed) -> None:
        """Renew a permit from now on, unless the program ends: then `end` has given the permit back.

        Args:
            arrival: the holder.
            renewed: called with the start of each renewal, or with None when the permit was lost. The permit is given
                back when this method's object has been collected.
        """
        with self._guard:
            self._asked.pop(arrival.task, None)
            if self._ends:
                return
            self._held[arrival.nonce] = arrival, renewed
        self._turns.go_on()

    def renew(self, arrival: Arrival) -> bool:
        """Renew the lease of a permit; False if it is held no longer.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        birth = self._declarations.birth
        for _ in range(_BIRTHS):
            number = self._number  # before the look at `_held`: no call up to this number has ended a permit in it
            with self._guard:
                if arrival.nonce not in self._held:
                    return False
            (answer,), _, found = self._call(self._store.renew(self._worker, number, [arrival], birth=birth))
            if found.decode() == birth:
                return answer in _HELD
            birth = found.decode()
        raise StoreUnavailable("the store's data began anew during each renewal")

    def release(self, arrival: Arrival) -> Future[None]:
        """Give a permit back; return a future for the store's answer. If the store is away the row is sent later."""
        with self._guard:
            self._held.pop(arrival.nonce, None)
            done = self._next.end(arrival.task, arrival.nonce, USED)
        self._turns.go_on()
        return done

    # -- the thread ----------------------------------------------------------------------------------------------

    def _has_to_stay(self) -> bool:
        return bool(self._has_work or self._waiting or self._held)

    @property
    def _has_work(self) -> bool:
        """Whether there is something to send, or a call under way."""
        return bool(self._next) or self._under_way is not None or not self._later.empty()

    def _turn(self, hinted: bool) -> float:
        """Make the calls that are due; return the seconds until the next turn, at the latest."""
        if hinted:
            self._look_at = 0.0
        try:
            while not self._later.empty():
                self._later.get()()
            if self._renew_at <= time.monotonic():
                self._renew_all()
            if self._has_work or (self._waiting and self._look_at <= time.monotonic()):
                self._exchange()
        except Exception as error:
            if not isinstance(error, StoreUnavailable):
                logger.exception("celery_throttle: error among permits outside of tasks")
            self._failed(error)
            return _AGAIN
        if self._has_work:
            return 0.0
        due = min(self._renew_at, self._look_at) if self._waiting else self._renew_at
        return max(due - time.monotonic(), 0.0)

    # -- calls ---------------------------------------------------------------------------------------------------

    def _exchange(self) -> None:
        self._declarations.send()
        batch, exchange = self._under_way = self._under_way or self._next_call()
        birth = self._declarations.birth
        call = self._store.exchange(self._worker, self._number, (self._queue,), exchange, birth, self._read)
        try:
            reply = read_exchanged(self._call(call))
            read(batch.fits, reply)
        except Overtaken as later:  # by no call of this process
            logger.error("celery_throttle: %s: going on after it", later)  # noqa: TRY400
            self._number = later.number + 1
            return
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, ResponseError):
                raise
            self._refused(batch, error)
            return
        if reply is None:  # the store was emptied
            self._declarations.forget()
            self._renewed_at = -math.inf
            return
        self._under_way, self._unthrottled, self._read = None, False, self._number
        with self._guard:
            try:
                self._take_answers(batch, reply)
            except BaseException as error:
                batch.fail(StoreUnavailable(f"an answer of the store had no effect: {error!r}"))
                raise
        if reply.reclaimed:
            self._report_reclaimed(reply.reclaimed)
        at_once = reply.more or (self._waiting and self._bell.listen())  # hints may have been missed before
        wait = min(reply.wait or _LOOK_EVERY, _LOOK_EVERY, self.lease / 3)
        self._look_at = time.monotonic() + (0.0 if at_once else wait)

    def _next_call(self) -> tuple[Batch, Exchange]:
        with self._guard:
            batch = self._next.take()
        self._number += 1
        return batch, batch.exchange(len(self._waiting) + len(batch.lining), self.lease)

    def _take_answers(self, batch: Batch, reply: Reply) -> None:
        for asking, answer in zip(batch.arrived, reply.arrived, strict=True):
            self._answered(asking, answer, batch.begun)
        for grant in reply.grants:
            self._granted(self._waiting.pop(grant.task, None), grant.task, grant.nonce, batch.begun)
        for task, why in reply.unread:  # the store frees the permit when the lease ends
            if (unread := self._waiting.pop(task, None)) is not None:
                fail(unread.permit, StoreUnavailable(f"the store's record of this permit cannot be read: {why}"))
        for asking in batch.leaving:
            self._waiting.pop(asking.arrival.task, None)
            settle(asking.permit, value=False)
        for _, done in batch.ended:
            settle(done, value=None)

    def _answered(self, asking: Asking, answer: int, begun: float) -> None:
        if answer == Answer.GRANTED:
            self._granted(asking, asking.arrival.task, asking.arrival.nonce, begun)
        elif answer == Answer.PARKED:
            self._waiting[asking.arrival.task] = asking
        elif answer == Answer.CROWDED:
            limits = limits_text(asking.arrival.needs)
            fail(asking.permit, NotAcquired(f"limit {limits!r} has as many parked tasks as max_parked allows"))
        elif asking.waits:
            self._next.lining.append(asking)
        else:
            settle(asking.permit, value=False)

    def _granted(self, asking: Asking | None, task: str, nonce: str, began: float) -> None:
        if asking is None or not asking.grant(nonce, began):
            self._next.end(task, nonce, NOT_USED)  # its caller has left

    def _refused(self, batch: Batch, error: StoreUnavailable) -> None:
        """Handle a call that the store refused (it is out of memory, say), which had no effect.

        Fail the callers that want a permit. Send the rows that give something back again, without the others.
        """
        self._under_way = None
        with self._guard:
            for asking in batch.arrived:
                fail(asking.permit, error)
            self._next.put_back(batch)
        if not batch.arrived:
            raise error

    def _failed(self, error: Exception) -> None:
        """Handle a store that did not answer: fail all callers but those in line, which go on waiting.

        Requests that were not sent yet are dropped; all other rows are sent later.
        """
        batch, _ = self._under_way or (Batch(), None)
        with self._guard:
            batch.fail(error)
            self._next.fail(error)
            self._next.asking.clear()
        if self._waiting or batch.lining or self._next.lining:
            logger.warning("celery_throttle: waiting for permits, trying again: %s", error)
        self._bell.hang_up()

    # -- leases --------------------------------------------------------------------------------------------------

    @property
    def _renew_at(self) -> float:
        return self._renewed_at + (min(self.lease / 3, _RENEW_EVERY) if self._held else self.lease / 3)

    def _renew_all(self) -> None:
        birth = self._declarations.birth
        for _ in range(_BIRTHS):
            if (found := self._renew_in(birth)) == birth:
                return
            birth = found  # the store was emptied: list the permits again
        raise StoreUnavailable("the store's data began anew during each renewal")

    def _renew_in(self, birth: str) -> str:
        """Renew all in data with this birth; return the birth that the store's data has."""
        begun, number = time.monotonic(), self._number
        with self._guard:
            held = list(self._held.values())
        waiting = list(self._waiting.values())
        while held or waiting:
            some, others = take_rows(held, MOST_RENEWED), take_rows(waiting, MOST_RENEWED)
            tasks = [each.arrival.task for each in others]
            call = self._store.renew(self._worker, number, [arrival for arrival, _ in some], tasks, birth)
            answers, known, found = self._call(call)
            if found.decode() != birth:
                return str(found.decode())
            for (arrival, renewed), answer in zip(some, answers, strict=True):
                report = renewed()
                if report is None:
                    self.release(arrival)
                else:
                    report(begun if answer in _HELD else None)
            self._line_up_again([each for each, there in zip(others, known, strict=True) if not there])
        self._renewed_at = begun
        return birth

    def _line_up_again(self, unknown: list[Asking]) -> None:
        """Park callers again that the store does not have, because it was emptied."""
        if unknown:
            self._declarations.forget()
        for each in unknown:
            del self._waiting[each.arrival.task]
        with self._guard:
            self._next.lining.extend(unknown)

    def end(self) -> None:
        """Give back all permits and leave all lines, because the program ends."""
        with self._guard:
            self._ends = True
            held = [arrival for arrival, _ in self._held.values()]
            asked = list(self._asked.values())
        for asking in asked:
            self.drop(asking)
        for arrival in held:
            self.release(arrival)

    @property
    def is_idle(self) -> bool:
        """Whether everything was sent and answered."""
        with self._guard:
            return not (self._has_work or self._waiting)
