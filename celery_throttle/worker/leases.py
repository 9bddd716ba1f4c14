"""Keep the leases of everything this worker holds, from a thread: a busy loop must not cost a permit."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from celery_throttle.core.limits import shown
from celery_throttle.store.scripts import execute
from celery_throttle.worker.runs import holders

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_throttle.worker.group import Group
    from celery_throttle.worker.runs import Run
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["Leases"]

logger = logging.getLogger(__name__)

_AT_ONCE = 200
_LOST, _PUT_BACK = 0, 2


class Leases:
    """The permits held by this worker, renewed at a third of their lease.

    Args:
        groups: those of the worker; each has a connection for this.
        lease: seconds that a permit lasts.
        timekeeper: its thread does the renewing.
        give_back: called with a run whose permit was put back although it had ended meanwhile.
    """

    def __init__(
        self, groups: Sequence[Group], lease: float, timekeeper: Timekeeper, give_back: Callable[[Run], None]
    ) -> None:
        self._groups, self._lease, self._timekeeper, self._give_back = groups, lease, timekeeper, give_back
        self._held: dict[str, Run] = {}

    def start(self) -> None:
        """Begin to renew."""
        for group in self._groups:
            self._timekeeper.later(self._lease / 3, partial(self._renew_and_again, group))

    def add(self, run: Run) -> None:
        """Hold: renew from now on."""
        self._held[run.nonce] = run

    def remove(self, run: Run) -> None:
        """Do not renew any more."""
        self._held.pop(run.nonce, None)

    def all(self) -> list[Run]:
        """Everything held now."""
        return list(self._held.values())

    def _renew_and_again(self, group: Group) -> None:
        pause = self._lease / 3
        held = [run for run in self.all() if run.ledger is group.ledger]
        try:
            self._renew(group, held)
        except RedisError as error:
            # A server that is no primary any more would refuse on this connection for ever.
            group.client.connection_pool.disconnect()
            pause = min(1.0, self._lease / 10)
            logger.warning("celery_throttle: cannot renew %d leases, trying again: %s", len(held), error)
        finally:
            self._timekeeper.later(pause, partial(self._renew_and_again, group))

    def _renew(self, group: Group, held: list[Run]) -> None:
        for start in range(0, len(held), _AT_ONCE):
            some = held[start : start + _AT_ONCE]
            self.judge(some, execute(group.client, group.ledger.store.renew(holders(some))))

    def judge(self, runs: list[Run], answers: Any) -> None:
        """Act on the answers of renew.lua."""
        for run, answer in zip(runs, answers, strict=True):
            self._check(run, answer)

    def _check(self, run: Run, answer: int) -> None:
        ended = run.nonce not in self._held
        if answer == _LOST and not ended and not run.lost:
            # Renewing goes on: if room comes up while it still runs, it counts again.
            run.lost = True
            logger.warning(
                "lease_lost: task %s[%s] still runs, but its %s is gone",
                run.request.name,
                run.request.id,
                f"permit of limit {shown(run.needs.pool)!r}" if run.needs.pools else "identity lock",
                extra={"action": "lease_lost", "task_id": run.request.id},
            )
        elif answer == _PUT_BACK and ended:
            self._give_back(run)
        elif answer == _PUT_BACK:
            logger.warning("celery_throttle: the store had lost the permit of task %s, put back", run.request.id)
