"""Revocation: find the tasks that were revoked, and report parked ones that have left their lines."""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from itertools import takewhile
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery.worker import state
from celery.worker.request import Request

from celery_throttle.core.contents import stored_id
from celery_throttle.worker.celery_side.requests import Declined, sender_of
from celery_throttle.worker.user_code import call

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.store.exchange_reply import Withdrawn
    from celery_throttle.worker.celery_side.requests import RequestFactory
    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["Reserved", "Revoked", "Withdrawing"]

logger = logging.getLogger(__name__)

#: Seconds until the result backend is tried again.
_PAUSE = 1.0


class Revoked:
    """Follows Celery's set of revoked tasks, which has a maximum size and drops the oldest.

    A task that is revoked again goes to the end of the set, as a new entry. So this follows the times of the entries.
    Those that a worker got from its neighbours, before Celery 5.7, have times of other hosts.
    """

    def __init__(self) -> None:
        self._looked_at = -inf

    def connected(self) -> None:
        """Return all tasks at the next look: neighbours have told of others when the broker connection was made."""
        self._looked_at = -inf

    def new(self) -> list[str]:
        """Return the ids of the tasks that were added since the last call, as the store has them, newest last."""
        since, self._looked_at = self._looked_at, monotonic()
        # A copy, because the consumer's thread may add one. The set's own iterator sorts it.
        known = list(state.revoked._data.values())  # type: ignore[attr-defined]  # noqa: SLF001
        added = list(takewhile(lambda entry: entry[0] >= since, reversed(known)))
        last = inf if since == -inf else self._looked_at
        return [stored_id(entry[-1]) for entry in reversed(added) if entry[0] <= last]


class Reserved:
    """Ends revoked tasks that a worker has and has not begun, so that their identity locks are free at once.

    Celery ends such a task when its ETA has come, or when it has a slot.
    """

    def __init__(self) -> None:
        self._left: set[str] = set()  # whose end could not be stored yet

    def end(self, revoked: list[str], consumer: Any, ends: Callable[[Any], bool]) -> None:
        """End the requests of these tasks for which ``ends`` returns True."""
        tasks, self._left = {*revoked, *self._left}, set()
        for request in _not_begun(consumer, tasks) if tasks else ():
            if request.hostname != consumer.hostname or not ends(request):  # a test has several workers in one process
                continue
            try:
                call(request.revoked)
            except Exception as error:  # noqa: BLE001 - of any backend
                logger.error("Revoked task %s[%s] is ended later: %r", request.name, request.id, error)  # noqa: TRY400
                self._left.add(request.id)


def _not_begun(consumer: Any, tasks: set[str]) -> list[Any]:
    """Return the requests of tasks in Celery's lists that have not begun, also those that wait for their ETA."""
    reserved = [request for task in tasks if (request := state.requests.get(task)) is not None]
    entries = [waiting.entry for waiting in tuple(consumer.timer.schedule.queue)]
    timed = [each for entry in entries for each in entry.args[:1] if isinstance(each, Request) and each.id in tasks]
    return [each for each in {*reserved, *timed} if each not in state.active_requests]


class Withdrawing:
    """Stores in the result backend that parked tasks were revoked; all on the loop.

    The store has deleted these tasks, so the ones not reported yet are kept here alone.

    Args:
        loop: the loop that everything happens on.
        timekeeper: calls later, to try again.
    """

    def __init__(self, loop: Loop, timekeeper: Timekeeper) -> None:
        self._loop, self._timekeeper = loop, timekeeper
        self._unreported: deque[Withdrawn] = deque()

    def report(self, each: Withdrawn, requests: RequestFactory) -> None:
        """Report one more task, now, or after the tasks that wait for the result backend."""
        self._unreported.append(each)
        if len(self._unreported) == 1:
            self._report_all(requests)

    def _report_all(self, requests: RequestFactory) -> None:
        while self._unreported:
            try:
                call(_report, self._unreported[0], requests)
            except Exception as error:  # noqa: BLE001 - each backend has its own
                task = self._unreported[0].task
                logger.error("Revoked task %s has left its line, which is reported later: %r", task, error)  # noqa: TRY400
                # One try at a time, because each may take long to fail. This task goes behind the others, in case it
                # alone cannot be reported.
                self._unreported.rotate(-1)
                self._timekeeper.later(_PAUSE, lambda: self._loop.post(self._report_all, requests))
                return
            self._unreported.popleft()


def _report(each: Withdrawn, requests: RequestFactory) -> None:
    ignore = lambda *args: None  # noqa: E731
    try:
        request = call(partial(requests.make, each.message, redelivered=False, on_ack=ignore, on_reject=ignore))
    except Declined:
        logger.debug("Revoked task %s has left its line", each.task)
    except Exception as error:  # noqa: BLE001 - not registered here, or content that it may not decode
        logger.warning("Revoked task %s has left its line; no request can be made of it here: %r", each.task, error)
        requests.consumer.app.backend.mark_as_revoked(each.task, "revoked", request=sender_of(each.message))
    else:
        request.revoked()
