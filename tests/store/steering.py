"""Saying something of a limit at run time, and reading how things stand, by the scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.store.audit import Change, read_changes
from celery_throttle.store.calls import Store
from celery_throttle.store.draining import Lent, read_lent
from celery_throttle.store.explain import Explanation, explained
from celery_throttle.store.limit_status import LimitStatus, read_statuses
from celery_throttle.store.parked_tasks import Parked, ParkedId, parked_rows, read_parked, read_parked_ids
from celery_throttle.store.scripts import execute
from celery_throttle.store.task_view import read_task_view
from celery_throttle.store.unreadable import SetAside, read_set_aside
from tests.store.caller import KEYS, LEASE


class Steering:
    """The calls of `celery_throttle.ThrottleControl`, without an app."""

    def __init__(self, client: Redis) -> None:
        self.client, self.store = client, Store(KEYS, LEASE)

    def say(
        self,
        limit: Limit | str,
        what: str,
        value: object = 1,
        *,
        until: str = "0",
        why: str = "w",
        by: str = "ana@desk",
        request: str = "",
    ) -> int:
        bucket = limit.name if isinstance(limit, Limit) else limit
        answer = cast("int", self.ask(self.store.control(bucket, what, str(value), until, by, why, request)))
        after = b""
        while answer >= 0:
            after = cast("bytes", self.ask(self.store.wake(bucket, after.decode())))
            if not after:
                break
        return answer

    def unsay(self, limit: Limit | str, what: str, **signed: str) -> int:
        return self.say(limit, what, "", **signed)

    def audit(self) -> tuple[Change, ...]:
        return read_changes(self.ask(self.store.audit()))

    def stands(self, limit: Limit | str) -> LimitStatus:
        bucket = limit.name if isinstance(limit, Limit) else limit
        return read_statuses(self.ask(self.store.status([bucket])))[0]

    def parked(self, bucket: str | None = None, most: int = 100) -> tuple[Parked, ...]:
        found: list[Any] = []
        after, left = b"", most
        while left > 0:
            after, rows = parked_rows(self.ask(self.store.parked(bucket, min(left, 7), after)))
            found += rows
            left = left - len(rows) if after else 0
        return read_parked(found)

    def aside(self, most: int = 100) -> tuple[SetAside, ...]:
        return read_set_aside(self.ask(self.store.aside(most)))

    def explain(self, task: str) -> Explanation:
        return explained(task, read_task_view(self.ask(self.store.explain(task))))

    def parked_ids(self, limit: Limit | str = "", page: int = 500) -> list[ParkedId]:
        bucket, after, found = limit.name if isinstance(limit, Limit) else limit, "", []
        while True:
            after, rows = read_parked_ids(self.ask(self.store.parked_ids(bucket, after, page)))
            found += rows
            if not after:
                return found

    def drop(self, limit: Limit | str, *tasks: str, why: str = "", page: int = 100) -> int:
        """Drop these, or all of the limit that are to run."""
        bucket = limit.name if isinstance(limit, Limit) else limit
        ids = list(tasks) or [each.task for each in self.parked_ids(bucket) if each.what != "told"]
        change, dropped = b"", 0
        for first in range(0, len(ids), page):
            call = self.store.drop(bucket, "ana", why, change.decode(), ids[first : first + page])
            change, count = self.ask(call)
            dropped += count
        return dropped

    def borrow(self, *tasks: str, nonce: str = "drain:1", most_bytes: int = 10**6) -> tuple[int, list[Lent]]:
        return read_lent(self.ask(self.store.unpark(nonce, most_bytes, tasks)))

    def publish(
        self, *tasks: str, others: Sequence[str] = (), nonce: str = "drain:1", change: str = ""
    ) -> tuple[str, int]:
        """Say that these are in their queues again."""
        number, gone = self.ask(self.store.unparked(nonce, "ana", "", change, tasks, others))
        return number.decode(), gone

    def ask(self, call: Any) -> Any:
        return execute(self.client, call)
