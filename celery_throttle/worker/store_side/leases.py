"""Renew the leases of all permits of this worker, in a thread, so that a busy loop does not cost a permit."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from celery_throttle.errors import StoreUnavailable
from celery_throttle.store.reading import UnreadableReply
from celery_throttle.store.scripts import execute
from celery_throttle.worker.store_side.renewals import renewals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_throttle.worker.blocked import Blocked
    from celery_throttle.worker.ended_bodies import EndedBodies
    from celery_throttle.worker.groups import Group
    from celery_throttle.worker.reported.paced_log import PacedLog
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["Leases"]

#: Seconds between two looks whether a renewal is due, at the most.
_AGAIN = 1.0
#: How often a renewal begins again because the store's data has begun anew.
_BIRTHS = 3


class Leases:
    """Renews the permits of this worker after each third of their lease.

    The store may carry out a renewal after a call that was sent later. So a renewal has the number of the last call
    before it, and the store does not put back a holder that a later call may have ended. Nor does a store that was
    emptied since: the permits are listed again for it.

    Args:
        groups: the worker's groups of limits; each has a client for renewals.
        lease: seconds that a permit lasts.
        timekeeper: its thread renews.
        blocked: logs runs that kept this thread from renewing.
        ended: lets permits lapse whose runs have ended.
        log: for renewals that fail.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        lease: float,
        timekeeper: Timekeeper,
        blocked: Blocked,
        ended: EndedBodies,
        log: PacedLog,
    ) -> None:
        self._groups, self._lease, self._timekeeper = groups, lease, timekeeper
        self._blocked, self._ended, self._log = blocked, ended, log
        self._begun = monotonic()
        self._due: dict[Group, float] = {}  # when a group's next renewal is due; absent before the first

    def start(self) -> None:
        """Begin to renew."""
        for group in self._groups:
            self._timekeeper.every(min(_AGAIN, self._lease / 12), partial(self._look, group))

    def renew(self, group: Group) -> None:
        """Renew the permits that this worker holds in a group now.

        Raises:
            redis.exceptions.RedisError: the store did not answer, or refused.
            StoreUnavailable: a reply cannot be read, or the store's data began anew again and again.
        """
        birth = group.calls.birth
        for _ in range(_BIRTHS):
            found = self._renew_in(group, birth)
            if found == birth:
                return
            birth = found
        raise StoreUnavailable("its data began anew during each renewal")

    def _renew_in(self, group: Group, birth: str) -> str:
        """Renew the permits in data with this birth; return the birth that the store's data has."""
        number = group.calls.number  # before `held` is read: no call up to this number has ended a permit in it
        calls, unreadable = group.calls, None
        for renewal in renewals(calls.store, calls.worker, number, list(calls.held.values()), birth):
            try:
                found = renewal.judge(calls.held, calls.lease_reports.lost, execute(group.client, renewal.call))
            except UnreadableReply as error:  # which keeps no other permit from its renewal
                unreadable = error
                continue
            if found != birth:
                return found
        if unreadable is not None:
            raise unreadable
        return birth

    def _look(self, group: Group) -> None:
        """Renew if that is due."""
        now = monotonic()
        if now < self._due.get(group, self._begun + self._lease / 3):
            return
        try:
            self._blocked.renewing(group.calls.group, list(group.calls.held.values()))
        finally:
            self._try(group, now)

    def _try(self, group: Group, now: float) -> None:
        """Renew; after any error that is due again in the next look."""
        try:
            try:
                self._ended.let_lapse(list(group.calls.held.values()))
            finally:
                self.renew(group)
                self._due[group] = now + self._lease / 3
        except Exception as error:  # noqa: BLE001 - logged
            self._log.warning("celery_throttle: cannot renew leases, trying again: %s: %s", type(error).__name__, error)
            # If the server is no primary any more, it would refuse on this connection for ever.
            group.client.connection_pool.disconnect()
