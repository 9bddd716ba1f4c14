"""Keep the leases of everything this worker holds, from a thread: a busy loop must not cost a permit."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from redis.exceptions import RedisError

from celery_throttle.store.scripts import execute
from celery_throttle.worker.store_side.renewals import judge, renewals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_throttle.worker.blocked import Blocked
    from celery_throttle.worker.groups import Group
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["Leases"]

logger = logging.getLogger(__name__)


class Leases:
    """The permits held by this worker, renewed at a third of their lease.

    A renewal may be carried out after a call that was made later: so it says after which call it was put together, and
    the store puts nothing back that a later one may have ended.

    Args:
        groups: those of the worker; each has a connection for this.
        lease: seconds that a permit lasts.
        timekeeper: its thread does the renewing.
        blocked: notices what kept it from that.
    """

    def __init__(self, groups: Sequence[Group], lease: float, timekeeper: Timekeeper, blocked: Blocked) -> None:
        self._groups, self._lease, self._timekeeper, self._blocked = groups, lease, timekeeper, blocked

    def start(self) -> None:
        """Begin to renew."""
        for group in self._groups:
            self._timekeeper.later(self._lease / 3, partial(self._renew_and_again, group))

    def renew(self, group: Group) -> None:
        """Renew what this worker holds in a group now.

        Raises:
            redis.exceptions.RedisError: the store did not answer, or refused.
        """
        number = group.calls.number  # first: what is held then was not ended by any call up to this one
        calls = group.calls
        for permits, call in renewals(calls.store, calls.worker, number, list(calls.held.values())):
            answers, _ = cast("tuple[list[int], Any]", execute(group.client, call))
            judge(permits, answers)

    def _renew_and_again(self, group: Group) -> None:
        pause = self._lease / 3
        self._blocked.renewing(group.calls.group, list(group.calls.held.values()))
        try:
            self.renew(group)
        except RedisError as error:
            # A server that is no primary any more would refuse on this connection for ever.
            group.client.connection_pool.disconnect()
            pause = min(1.0, self._lease / 10)
            logger.warning("celery_throttle: cannot renew leases, trying again: %s", error)
        finally:
            self._timekeeper.later(pause, partial(self._renew_and_again, group))
