"""Those of one process who want a permit outside of tasks: one place in the store's lines for all of them.

To the store a process that waits is as a worker with a queue of its own: it is offered what is its turn by a hint, and
takes it. Whoever waits is under a lease, so a process that is killed does not stand in line for ever.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import uuid
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from redis.exceptions import RedisError

from celery_throttle.errors import StoreUnavailable
from celery_throttle.settings import settings_of
from celery_throttle.store import replies
from celery_throttle.store.replies import Answer
from celery_throttle.store.scripts import Store, execute
from celery_throttle.store.servers.client import make_client

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.core.settings import Settings
    from celery_throttle.core.terms import Needs
    from celery_throttle.store.replies import Grant, Reply
    from celery_throttle.store.scripts import Call, HolderRow

__all__ = ["Forgotten", "Waiting", "waiting_of"]

logger = logging.getLogger(__name__)

#: Seconds until the store is asked again after it did not answer.
_AGAIN = 0.5
#: Seconds between two looks of those who wait, when no hint comes.
_TURN_EVERY = 2.0


class Forgotten(Exception):
    """The store was emptied, and knows nothing of who waited."""


class Waiting:
    """Asks for permits, waits in line, gives back; safe to use in threads.

    Args:
        settings: of the app.
        group: of limits; None for that of those that name none.
    """

    def __init__(self, settings: Settings, group: str | None) -> None:
        self._name = uuid.uuid4().hex[:8]
        queue = f"~{self._name}"
        self.lease, self._queue = settings.lease, queue
        self._turn_every = min(settings.lease / 3, _TURN_EVERY)
        keys = settings.keys(group)
        self._client = make_client(settings.url, keys)
        self._store, self._channel = Store(keys, settings.lease, (queue,)), keys.wake
        self._numbers = itertools.count(1)
        self._guard = threading.Lock()
        self._waiting: dict[str, Future[str]] = {}
        self._listener: threading.Thread | None = None
        self._birth = ""
        self.process = os.getpid()

    def ask(self, holder: str, needs: Needs) -> str | None:
        """Return the nonce of the permit if there is one now.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        nonce = self._nonce()
        reply = self._settle(self._call(self._store.exchange(self._nonce(), 0, asked=[_row(holder, nonce, needs)])))
        return nonce if reply.answers[0] in (Answer.GRANTED, Answer.GRANTED_LAST) else None

    def line_up(self, holder: str, needs: Needs) -> Future[str]:
        """Wait in line; the future gets the nonce of the permit.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        granted: Future[str] = Future()
        with self._guard:
            self._waiting[holder] = granted
        row = (holder, needs.pool, needs.declared, 0, self._queue, b"-", "", needs.more)
        number = next(self._numbers)
        try:
            raw = self._call(self._store.park(self._nonce(), 1, self._name, number, [row]))
        except StoreUnavailable:
            self._drop(holder)
            raise
        self._settle(raw)
        with self._guard:
            if self._listener is None and self._waiting:
                self._listener = threading.Thread(target=self._listen, name="celery_throttle-waiting", daemon=True)
                self._listener.start()
        return granted

    def leave(self, holder: str) -> str | None:
        """Stop waiting; return the nonce of the permit if it came at the last moment."""
        granted = self._drop(holder)
        if granted is not None and granted.done() and granted.exception() is None:
            return granted.result()
        withdrawn = replies.withdrawn(self._call(self._store.withdraw([holder])))
        if withdrawn:
            return None
        raw = self._call(self._store.wait(self._nonce(), 0, [holder]))
        return next((grant.nonce for grant in replies.reply(raw).grants if grant.task_id == holder), None)

    def renew(self, holder: str, nonce: str, needs: Needs) -> bool:
        """Renew the lease of a permit; False if it is held no longer."""
        (answer,) = self._call(self._store.renew([_row(holder, nonce, needs)]))
        return bool(answer)

    def release(self, holder: str, nonce: str) -> None:
        """Give a permit back."""
        self._settle(self._call(self._store.exchange(self._nonce(), 0, [(holder, nonce, "done")])))

    def reserve(self, pool: str, declared: str, cost: int, longest: float) -> tuple[int, int] | None:
        """Return a booked start and the time of the store, both in microseconds; None if the limit has no rate."""
        raw = self._call(self._store.reserve(pool, declared, cost, longest))
        return (raw[0], raw[1]) if raw else None

    def _nonce(self) -> str:
        return f"{self._name}:{next(self._numbers):x}"

    def _call(self, call: Call) -> Any:
        try:
            return execute(self._client, call)
        except RedisError as error:
            raise StoreUnavailable(f"the store did not answer: {error}") from error

    def _drop(self, holder: str) -> Future[str] | None:
        with self._guard:
            return self._waiting.pop(holder, None)

    def _settle(self, raw: Any) -> Reply:
        reply = replies.reply(raw)
        for grant in reply.grants:
            self._granted(grant)
        if 0 < reply.wait < self._turn_every and self._waiting:
            timer = threading.Timer(reply.wait, self._quietly, (self._take_turns,))
            timer.daemon = True
            timer.start()
        return reply

    def _granted(self, grant: Grant) -> None:
        waiting = self._drop(grant.task_id)
        if waiting is not None:
            waiting.set_result(grant.nonce)
        else:
            # It has just given up, and has not said so yet: `leave` finds it.
            logger.debug("celery_throttle: a permit for %s, who left", grant.task_id)

    def _take_turns(self) -> None:
        """Ask for everybody who waits."""
        with self._guard:
            holders = list(self._waiting)
        if not holders:
            return
        raw = self._call(self._store.wait(self._nonce(), len(holders), holders))
        self._settle(raw)
        forgotten = [holder for holder, known in zip(holders, raw[0], strict=True) if not known]
        if forgotten:
            # Those who hold a permit get the time to put it back.
            self._declare()
        for holder in forgotten:
            if (waiting := self._drop(holder)) is not None:
                waiting.set_exception(Forgotten())

    def _declare(self) -> None:
        """Know this store again, or tell it that it was emptied."""
        self._birth = self._call(self._store.declare(self._birth, ()))[0].decode()

    def _quietly(self, function: Callable[[], None]) -> bool:
        try:
            function()
        except (StoreUnavailable, RedisError, OSError) as error:
            if self._waiting:
                logger.warning("celery_throttle: waiting for permits, trying again: %s", error)
            return False
        return True

    def _listen(self) -> None:
        """Take turns whenever a hint says so, and now and then, as long as anybody waits."""
        while True:
            done = self._quietly(self._hear)
            with self._guard:
                if not self._waiting:
                    self._listener = None
                    break
            if not done:
                time.sleep(_AGAIN)
        self._quietly(lambda: self._call(self._store.leave(self._name)))

    def _hear(self) -> None:
        with self._client.pubsub(ignore_subscribe_messages=True) as hints:  # type: ignore[no-untyped-call]
            hints.subscribe(self._channel)
            self._declare()
            while self._waiting:
                self._take_turns()
                until = time.monotonic() + self._turn_every
                while self._waiting and (left := until - time.monotonic()) > 0:
                    hint = hints.get_message(timeout=min(left, 0.25))
                    if hint and hint["data"] == self._queue.encode():
                        break


def _row(holder: str, nonce: str, needs: Needs) -> HolderRow:
    return holder, nonce, needs.pool, needs.declared, 0, "", needs.more


_all: WeakKeyDictionary[Any, dict[str | None, Waiting]] = WeakKeyDictionary()


def waiting_of(app: Any, group: str | None) -> Waiting:
    """Return the place of this process in the lines of a group of an app's store; a forked process gets its own."""
    groups = _all.setdefault(app, {})
    if group not in groups or groups[group].process != os.getpid():
        groups[group] = Waiting(settings_of(app), group)
    return groups[group]
