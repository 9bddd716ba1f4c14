"""This process as one more worker: whoever wants a permit outside of tasks gets it by the calls that workers make.

One thread makes them, one at a time, for everybody who asks, waits, holds or gives back. It ends when there is nobody.
"""

from __future__ import annotations

import itertools
import logging
import os
import select
import socket
import threading
import time
import uuid
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary, finalize

from redis.exceptions import RedisError

from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.errors import StoreUnavailable
from celery_throttle.settings import settings_of
from celery_throttle.store import replies
from celery_throttle.store.calls import MOST_RENEWED, Arrival, Ended, Exchange, Store, take_rows
from celery_throttle.store.replies import Answer
from celery_throttle.store.scripts import execute
from celery_throttle.store.servers.client import make_client

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.core.settings import Settings
    from celery_throttle.store.replies import Reply
    from celery_throttle.store.scripts import Call

__all__ = ["Asking", "Outside", "outside_of"]

logger = logging.getLogger(__name__)

#: Seconds until the store is asked again after it did not answer.
_AGAIN = 0.5
#: Seconds between two looks of those who wait, when no hint comes.
_LOOK_EVERY = 2.0
#: Seconds for which the thread stays when there is nobody.
_LINGER = 1.0


class Asking:
    """Somebody who wants a permit.

    Attributes:
        arrival: as the store knows it; with its nonce once it holds.
        limit: name and declaration, should the store know nothing of it.
        waits: whether it gets in line if there is no permit now.
        permit: set to whether it holds now.
    """

    def __init__(self, holder: str, needs: str, queue: str, nonce: str, limit: tuple[str, str], *, waits: bool) -> None:
        self.arrival = Arrival(holder, needs, queue, nonce=nonce)
        self.limit, self.waits = limit, waits
        self.permit: Future[bool] = Future()
        self.left: Future[bool] | None = None

    def leave(self) -> Future[bool]:
        """Stop waiting; the future is to tell whether the permit came at the last moment."""
        self.left = self.left or Future()
        if self.permit.done():
            self.tell_left()
        return self.left

    def tell_left(self) -> None:
        """Tell who has left whether the permit came."""
        if self.left is not None:
            _settle(self.left, value=self.permit.exception() is None and self.permit.result())

    def got(self, nonce: str) -> bool:
        """It holds, as the store knows it now; whether anybody waits for that."""
        self.arrival = self.arrival._replace(nonce=nonce)
        return not self.permit.done() and self.permit.set_running_or_notify_cancel()


class Outside:
    """Asks for permits, waits in line, renews, gives back; safe to use in threads.

    Args:
        settings: of the app.
        group: of limits; None for that of those that name none.
    """

    def __init__(self, settings: Settings, group: str | None) -> None:
        self._worker = uuid.uuid4().hex[:8]
        self._queue = f"~{self._worker}"
        self.lease = settings.lease
        keys = settings.keys(group)
        self._client = make_client(settings.url, keys)
        self._store, self._channel = Store(keys, settings.lease), keys.wake
        self._nonces = itertools.count(1)
        self._number = 0
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        finalize(self, _close, self._wake_reader, self._wake_writer)
        self._birth = ""
        self._limits: dict[str, str] = {}
        self._undeclared: dict[str, str] = {}
        self._asking: list[Asking] = []
        self._lining: list[Asking] = []  # to be parked
        self._waiting: dict[str, Asking] = {}
        self._leaving: list[Asking] = []
        self._ended: list[tuple[Ended, Future[None]]] = []
        self._held: dict[str, tuple[Arrival, Callable[[float | None], bool]]] = {}
        self._under_way: _Batch | None = None
        self._listening: Any = None
        self._look_at = self._renew_at = 0.0
        self.process = os.getpid()

    def ask(self, holder: str, needs: str, limit: tuple[str, str], *, waits: bool) -> Asking:
        """Ask for a permit; ``permit`` of what is returned tells whether it came, or `StoreUnavailable`."""
        nonce = f"{self._worker}:{next(self._nonces):x}"
        asking = Asking(holder, needs, self._queue, nonce, limit, waits=waits)
        with self._guard:
            if limit[0] not in self._limits:
                self._undeclared[limit[0]] = limit[1]
            self._asking.append(asking)
        self._go_on()
        return asking

    def leave(self, asking: Asking) -> Future[bool]:
        """Stop waiting; the future tells whether the permit came at the last moment."""
        with self._guard:
            left = asking.leave()
            if not left.done():
                self._leaving.append(asking)
        self._go_on()
        return left

    def hold(self, arrival: Arrival, renewed: Callable[[float | None], bool]) -> None:
        """Renew from now on; ``renewed`` is called with when a renewal was begun, or None when the permit was lost.

        It returns whether anybody wants the permit still.
        """
        with self._guard:
            self._held[arrival.nonce] = arrival, renewed
        self._go_on()

    def renew(self, arrival: Arrival) -> bool:
        """Renew the lease of a permit; False if it is held no longer."""
        (answer,), _ = cast("Any", self.call(self._store.renew(self._worker, self._number, [arrival])))
        return bool(answer)

    def release(self, arrival: Arrival) -> Future[None]:
        """Give a permit back; if the store does not answer now it is told later."""
        said: Future[None] = Future()
        with self._guard:
            self._held.pop(arrival.nonce, None)
            self._ended.append((Ended(arrival.task, arrival.nonce, Facts(True, Message.NOBODY, Result.SUCCESS)), said))
        self._go_on()
        return said

    def reserve(self, bucket: str, declared: str, cost: int, longest: float) -> tuple[int, int] | None:
        """Return a booked start and the time of the store, both in microseconds; None if the limit has no rate."""
        raw: Any = self.call(self._store.reserve(bucket, declared, cost, longest))
        return (raw[0], raw[1]) if raw else None

    def call(self, call: Call) -> object:
        """Carry out a call.

        Raises:
            StoreUnavailable: the store did not answer, or refused.
        """
        try:
            return execute(self._client, call)
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"the store did not answer: {error}") from error

    # -- the thread ----------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="celery-throttle-permits", daemon=True)
                self._thread.start()
        with suppress(OSError):
            self._wake_writer.send(b"\0")

    def _run(self) -> None:
        idle_since: float | None = None
        while True:
            pause = self._turn()
            with self._guard:
                if (
                    self._asking
                    or self._lining
                    or self._leaving
                    or self._ended
                    or self._under_way
                    or self._waiting
                    or self._held
                ):
                    idle_since = None
                elif idle_since is None:
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since >= _LINGER:
                    self._thread = None
                    break
            self._sleep(pause)
        self._hang_up()

    def _turn(self) -> float:
        """Say what there is to say; return after how many seconds to come again at the latest."""
        try:
            now = time.monotonic()
            if self._renew_at <= now:
                self._renew_all()
            while self._has_something(time.monotonic()) or self._listens_anew():
                self._exchange()
        except (StoreUnavailable, RedisError, OSError) as error:
            self._failed(error)
            return _AGAIN
        except Exception:
            logger.exception("celery_throttle: error among permits outside of tasks")
            return _AGAIN
        due = self._renew_at if not self._waiting else min(self._renew_at, self._look_at)
        return max(min(due - time.monotonic(), _LINGER if not self._waiting else _LOOK_EVERY), 0.0)

    def _has_something(self, now: float) -> bool:
        with self._guard:
            said = self._under_way or self._asking or self._lining or self._leaving or self._ended
            return bool(said) or (bool(self._waiting) and self._look_at <= now)

    def _sleep(self, pause: float) -> None:
        hints = getattr(getattr(self._listening, "connection", None), "_sock", None)
        with suppress(OSError, ValueError):
            select.select([self._wake_reader, *([hints] if hints else [])], [], [], pause)
        with suppress(OSError):
            self._wake_reader.recv(4096)
        self._hear()

    # -- calls ---------------------------------------------------------------------------------------------------

    def _exchange(self) -> None:
        self._declare()
        batch = self._under_way
        if batch is None:
            self._number += 1
            batch = self._under_way = self._batch()
        raw: Any = self.call(self._store.exchange(self._worker, self._number, (self._queue,), batch.said))
        reply = replies.exchanged(raw)
        if reply is None:  # the store was emptied
            self._undeclared = dict(self._limits)
            return
        self._under_way = None
        with self._guard:
            self._tell(batch, reply)
        wait = min(reply.wait or _LOOK_EVERY, _LOOK_EVERY, self.lease / 3)
        self._look_at = time.monotonic() + (0.0 if reply.more else wait)

    def _declare(self) -> None:
        with self._guard:
            undeclared = dict(self._undeclared)
        if not undeclared:
            return
        raw: Any = self.call(self._store.declare(self._birth, undeclared.items(), keeps=True))
        self._birth = raw[0].decode()
        with self._guard:
            self._limits |= undeclared
            for name in undeclared:
                self._undeclared.pop(name, None)

    def _batch(self) -> _Batch:
        with self._guard:
            lining, waiting = take_rows(self._lining), len(self._waiting)
            self._waiting.update((asking.arrival.task, asking) for asking in lining)
            lease_ms = int(self.lease * 1000)
            return _Batch(
                take_rows(self._asking),
                lining,
                take_rows(self._leaving),
                take_rows(self._ended),
                waiting,
                lease_ms=lease_ms,
            )

    def _tell(self, batch: _Batch, reply: Reply) -> None:
        for asking, answer in zip(batch.asking, reply.asked, strict=True):
            if answer == Answer.GRANTED:
                self._granted(asking, asking.arrival.nonce)
            elif asking.waits and asking.left is None and not asking.permit.done():
                self._lining.append(asking)
            else:
                _settle(asking.permit, value=False)
        for grant in reply.grants:
            waited = self._waiting.pop(grant.task, None)
            if waited is not None:
                self._granted(waited, grant.nonce)
            else:
                self._give_back(grant.task, grant.nonce)
        for asking in batch.leaving:
            self._waiting.pop(asking.arrival.task, None)
            _settle(asking.permit, value=False)
            asking.tell_left()
        for _, said in batch.ended:
            _settle(said, value=None)

    def _granted(self, asking: Asking, nonce: str) -> None:
        if not asking.got(nonce):
            self._give_back(asking.arrival.task, nonce)  # nobody waits for it any more
            return
        asking.permit.set_result(True)

    def _give_back(self, holder: str, nonce: str) -> None:
        facts = Facts(began=False, message=Message.NOBODY)
        self._ended.append((Ended(holder, nonce, facts), Future()))

    def _failed(self, error: Exception) -> None:
        """The store did not answer: who asks or gives back is told so, who waits in line goes on waiting."""
        with self._guard:
            batch = self._under_way
            asking = [*(batch.asking if batch else ()), *self._asking]
            ended = [*(batch.ended if batch else ()), *self._ended]
            self._asking = []
            waits = bool(self._waiting or self._lining)
        unavailable = StoreUnavailable(str(error))
        for each in asking:
            _fail(each.permit, unavailable)
        for _, said in ended:
            _fail(said, unavailable)
        if waits:
            logger.warning("celery_throttle: waiting for permits, trying again: %s", error)
        self._hang_up()

    # -- leases --------------------------------------------------------------------------------------------------

    def _renew_all(self) -> None:
        begun, number = time.monotonic(), self._number
        with self._guard:
            held, waiting = list(self._held.values()), list(self._waiting.values())
        while held or waiting:
            self._renew_some(begun, number, take_rows(held, MOST_RENEWED), take_rows(waiting, MOST_RENEWED))
        self._renew_at = begun + self.lease / 3

    def _renew_some(self, begun: float, number: int, held: list[Any], waiting: list[Asking]) -> None:
        names = [each.arrival.task for each in waiting]
        call = self._store.renew(self._worker, number, [arrival for arrival, _ in held], names)
        answers, known = cast("tuple[list[int], list[int]]", self.call(call))
        for (arrival, renewed), answer in zip(held, answers, strict=True):
            if not renewed(begun if answer else None):
                self.release(arrival)
        with self._guard:
            for each, there in zip(waiting, known, strict=True):
                # The store was emptied; whoever waited waits again.
                if not there and self._waiting.pop(each.arrival.task, None) is not None:
                    self._lining.append(each)
                    self._undeclared |= self._limits

    # -- hints ---------------------------------------------------------------------------------------------------

    def _listens_anew(self) -> bool:
        """Begin to listen if anybody waits; whether what was said before that has to be asked for."""
        if not self._waiting or self._listening is not None:
            return False
        self._listening = self._client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        self._listening.subscribe(self._channel)
        return True

    def _hear(self) -> None:
        wanted = f"ready {self._queue}".encode()
        try:
            while self._listening is not None and (hint := self._listening.get_message(timeout=0)):
                if hint["data"] == wanted:
                    self._look_at = 0.0
        except (RedisError, OSError):
            self._hang_up()

    def _hang_up(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            with suppress(RedisError, OSError):
                listening.close()


class _Batch:
    """One call, and whom its answers are for."""

    def __init__(
        self,
        asking: list[Asking],
        lining: list[Asking],
        leaving: list[Asking],
        ended: list[tuple[Ended, Future[None]]],
        waiting: int,
        *,
        lease_ms: int,
    ) -> None:
        self.asking, self.lining, self.leaving, self.ended = asking, lining, leaving, ended
        self.said = Exchange(
            slots=waiting + len(lining),
            ended=[each for each, _ in ended],
            revoked=[each.arrival.task for each in leaving],
            asked=[each.arrival for each in asking],
            parked=[each.arrival._replace(nonce="", message=b"-", wait_ms=lease_ms, outside=True) for each in lining],
        )


def _close(*sockets: socket.socket) -> None:
    for each in sockets:
        each.close()


def _settle(future: Future[Any], *, value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


_all: WeakKeyDictionary[Any, dict[str | None, Outside]] = WeakKeyDictionary()


def outside_of(app: Any, group: str | None) -> Outside:
    """Return what this process is to a group of an app's store; a forked process gets its own."""
    groups = _all.setdefault(app, {})
    if group not in groups or groups[group].process != os.getpid():
        groups[group] = Outside(settings_of(app), group)
    return groups[group]
