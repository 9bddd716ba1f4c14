"""Saying something of a limit at run time, and reading how things stand, by the scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from celery_throttle.core.limits import Limit
from celery_throttle.store import views
from celery_throttle.store.reasons import explained
from celery_throttle.store.scripts import Store, execute
from tests.store.caller import KEYS, LEASE

if TYPE_CHECKING:
    from redis import Redis

    from celery_throttle.store.reasons import Explanation
    from celery_throttle.store.views import LimitStatus, Parked


class Steering:
    """What `celery_throttle.Throttle` does, without an app."""

    def __init__(self, client: Redis) -> None:
        self.client, self.store = client, Store(KEYS, LEASE)

    def say(self, limit: Limit | str, name: str, value: object = 1, *, until: str = "0", why: str = "w") -> int:
        pool = limit.name if isinstance(limit, Limit) else limit
        call = self.store.control(pool, name, str(value), until, "ana@desk", why)
        answer, change = cast("tuple[int, bytes]", execute(self.client, call))
        after = b""
        while answer >= 0:
            after = cast("bytes", execute(self.client, self.store.wake(pool, change.decode(), after.decode())))
            if not after:
                break
        return answer

    def unsay(self, limit: Limit | str, name: str) -> int:
        return self.say(limit, name, "")

    def stands(self, limit: Limit | str) -> LimitStatus:
        pool = limit.name if isinstance(limit, Limit) else limit
        return views.statuses(self.ask(self.store.status([pool])))[0]

    def parked(self, pool: str | None = None, most: int = 100) -> tuple[Parked, ...]:
        return views.parked(self.ask(self.store.parked(pool, most)))

    def explain(self, task: str) -> Explanation:
        return explained(task, views.task_view(self.ask(self.store.explain(task))))

    def ask(self, call: Any) -> Any:
        return execute(self.client, call)
