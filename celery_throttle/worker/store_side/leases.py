"""Renew the leases of all permits of this worker, in a thread, so that a busy loop does not cost a permit."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

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

    def start(self) -> None:
        """Begin to renew."""
        for group in self._groups:
            self._timekeeper.later(self._lease / 3, partial(self._renew_and_again, group))

    def renew(self, group: Group) -> None:
        """Renew the permits that this worker holds in a group now.

        Raises:
            redis.exceptions.RedisError: the store did not answer, or refused.
        """
        birth = group.calls.birth
        while (found := self._renew_in(group, birth)) != birth:
            birth = found

    def _renew_in(self, group: Group, birth: str) -> str:
        """Renew the permits in data with this birth; return the birth that the store's data has."""
        number = group.calls.number  # before `held` is read: no call up to this number has ended a permit in it
        calls = group.calls
        for renewal in renewals(calls.store, calls.worker, number, list(calls.held.values()), birth):
            found = renewal.judge(calls.held, calls.lease_reports.lost, execute(group.client, renewal.call))
            if found != birth:
                return found
        return birth

    def _renew_and_again(self, group: Group) -> None:
        pause = self._lease / 3
        self._blocked.renewing(group.calls.group, list(group.calls.held.values()))
        try:
            self.renew(group)
            self._ended.let_lapse(list(group.calls.held.values()))
        except RedisError as error:
            # If the server is no primary any more, it would refuse on this connection for ever.
            group.client.connection_pool.disconnect()
            pause = min(1.0, self._lease / 10)
            self._log.warning("celery_throttle: cannot renew leases, trying again: %s", error)
        finally:
            self._timekeeper.later(pause, partial(self._renew_and_again, group))
