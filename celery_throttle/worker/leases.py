"""Keep the leases of everything this worker holds, from a thread: a busy loop must not cost a permit."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from celery_throttle.core.limits import shown
from celery_throttle.store.scripts import execute
from celery_throttle.worker.runs import holders

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis

    from celery_throttle.store.scripts import Store
    from celery_throttle.worker.runs import Run
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["Leases"]

logger = logging.getLogger(__name__)

_AT_ONCE = 200
_LOST, _PUT_BACK = 0, 2


class Leases:
    """The permits held by this worker, renewed at a third of their lease.

    Args:
        client: a connection of its own.
        store: builds the calls.
        timekeeper: its thread does the renewing.
        give_back: called with a run whose permit was put back although it had ended meanwhile.
    """

    def __init__(self, client: Redis, store: Store, timekeeper: Timekeeper, give_back: Callable[[Run], None]) -> None:
        self._client, self._store, self._timekeeper, self._give_back = client, store, timekeeper, give_back
        self._held: dict[str, Run] = {}

    def start(self) -> None:
        """Begin to renew."""
        self._timekeeper.later(self._store.lease / 3, self._renew_and_again)

    def add(self, run: Run) -> None:
        """Hold: renew from now on."""
        self._held[run.nonce] = run

    def remove(self, run: Run) -> None:
        """Do not renew any more."""
        self._held.pop(run.nonce, None)

    def all(self) -> list[Run]:
        """Everything held now."""
        return list(self._held.values())

    def _renew_and_again(self) -> None:
        pause = self._store.lease / 3
        try:
            self._renew()
        except RedisError as error:
            pause = min(1.0, self._store.lease / 10)
            logger.warning("celery_throttle: cannot renew %d leases, trying again: %s", len(self._held), error)
        finally:
            self._timekeeper.later(pause, self._renew_and_again)

    def _renew(self) -> None:
        held = self.all()
        for start in range(0, len(held), _AT_ONCE):
            some = held[start : start + _AT_ONCE]
            self.judge(some, execute(self._client, self._store.renew(holders(some))))

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
