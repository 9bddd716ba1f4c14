"""The store as an operator sees it, through `ThrottleControl`, and as keys that go away, with any content."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from celery import Celery
from redis import Redis

from celery_throttle import ThrottleControl
from celery_throttle.control.limit_control import LimitControl
from celery_throttle.errors import ConfigurationError
from celery_throttle.store.parked_tasks import Parked
from tests.support.waiting import until

_TASK_ID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_MOST = 1000


class State:
    """The content of the store, as a test may ask for it, without keys and records.

    Args:
        url: returns the address of the store at each use, because a test configures it after it got this fixture.
        settings: of the workers, where they are not the default (``throttle_prefix``, ``throttle_group``).
    """

    def __init__(self, url: Callable[[], str], **settings: str) -> None:
        self._url, self._settings = url, settings
        self._throttles: dict[str, ThrottleControl] = {}

    @classmethod
    def at(cls, client: Redis, prefix: str = "throttle") -> State:
        """Return the state of the store of a client; the prefix may have a group: ``throttle:eu``."""
        name, _, group = prefix.partition(":")
        where = client.connection_pool.connection_kwargs
        url = f"redis://{where.get('host', '127.0.0.1')}:{where['port']}/{where.get('db', 0)}"
        return cls(lambda: url, throttle_prefix=name, throttle_group=group)

    @property
    def throttle(self) -> ThrottleControl:
        url = self._url()
        if url not in self._throttles:
            # No settings of the workers: a reader needs none of their tasks either.
            app = Celery("state", broker="memory://", set_as_current=False)
            app.conf.update(throttle_url=url, **self._settings)
            self._throttles[url] = ThrottleControl(app)
        return self._throttles[url]

    def client(self) -> Redis:
        return Redis.from_url(self._url(), socket_timeout=5)

    @property
    def lines(self) -> tuple[Parked, ...]:
        """The waiting tasks, line by line, oldest first."""
        return self.throttle.parked(most=_MOST)

    @property
    def parked(self) -> list[str]:
        """Ids of the parked tasks, line by line, first come first."""
        return [each.task_id for each in self.lines]

    @property
    def count(self) -> int:
        """How many tasks are parked."""
        return len(self.lines)

    @property
    def holders(self) -> set[str]:
        """Ids of the tasks that hold a permit or an identity lock."""
        return {each.task_id for each in self.throttle.holders(most=_MOST)}

    @property
    def used(self) -> dict[str, int]:
        """Permits held, by ``limit`` or ``limit[key]``."""
        found = self.throttle.status(most=_MOST)
        return {str(each.bucket): each.held for each in found if each.held}

    def lease_left(self, task_id: str) -> float:
        """Seconds until this task's permit can be taken over, negative if it can; 0 if it holds none."""
        holders = self.throttle.holders(most=_MOST)
        return next((each.lease_left for each in holders if each.task_id == task_id), 0.0)

    def lease_end(self, task_id: str) -> float:
        """When the lease of this task ends, in seconds of the store's clock; 0 if it has none."""
        left = self.lease_left(task_id)
        with self.client() as client:
            now: Any = client.time()
        return float(now[0] + now[1] / 1e6 + left) if left else 0.0

    def limit(self, name: str, **key: Any) -> LimitControl:
        """Return the control of a limit, once a worker has declared it; that may be a moment after it is ready."""

        def declared() -> LimitControl | None:
            with suppress(ConfigurationError):
                return self.throttle.limit(name, **key)
            return None

        return until(declared) or self.throttle.limit(name, **key)

    def has_second(self, result: Any) -> bool:
        """Whether a second delivery of this task waits for the first to end."""
        return any("Another delivery" in reason for reason in self.throttle.explain(result.id).reasons)

    def ids(self) -> set[str]:
        """Every task id that is anywhere under the prefix, but in keys that end by themselves."""
        with self.client() as client:
            text = b"\n".join(part for key in _keys(client) for part in _content(client, key))
        return {found.decode() for found in _TASK_ID.findall(text)}

    def wait_parked(self, *results: Any) -> None:
        """Wait until these tasks are parked, or until so many are and no more: ``wait_parked(3)``."""

        def are_parked() -> bool:
            parked = self.parked
            if results and isinstance(results[0], int):
                return len(parked) == results[0]
            return {result.id for result in results} <= set(parked)

        until(are_parked, describe=self.describe)

    def is_empty(self) -> bool:
        """Return whether there are no holders and no parked tasks."""
        return not (self.holders or self.parked or self.used)

    def wait_empty(self) -> None:
        until(self.is_empty, describe=self.describe)

    def wait_clean(self) -> None:
        """Wait until there are no holders and no parked tasks, and no task has left a trace."""
        until(lambda: self.is_empty() and not self.ids(), describe=self.describe)

    def records(self) -> dict[str, str]:
        """Every record of a task, also those of messages that are over, which end by themselves after a day."""
        with self.client() as client:
            keys = [key for key in client.scan_iter("*throttle*records") if client.type(key) in (b"hash", "hash")]
            return {task.decode(): text.decode() for key in keys for task, text in client.hgetall(key).items()}

    def wait_gone(self) -> None:
        """Wait until the store has no record of any task."""
        until(lambda: self.is_empty() and not self.records(), describe=lambda: f"records: {self.records()}")

    def describe(self) -> str:
        return f"held {self.holders}, used {self.used}, parked {self.lines}, ids left {self.ids()}"


def _keys(client: Redis) -> Iterator[bytes]:
    for key in client.scan_iter("*throttle*"):
        ttl: Any = client.ttl(key)
        if ttl < 0:
            yield key


def _content(client: Any, key: bytes) -> Iterator[bytes]:
    """Everything that a key has, and its name; but not when that ends which is in a key that ends by itself."""
    read: dict[bytes, Callable[[], Any]] = {
        b"string": lambda: [client.get(key)],
        b"hash": lambda: [part for pair in client.hgetall(key).items() if not _is_note(pair[1]) for part in pair],
        b"list": lambda: client.lrange(key, 0, -1),
        b"set": lambda: client.smembers(key),
        b"zset": lambda: [member for member in client.zrange(key, 0, -1) if not member.startswith(b"records:")],
        b"stream": lambda: [repr(client.xrange(key)).encode()],
    }
    yield key
    yield from (part for part in read.get(client.type(key), list)() if part)  # none: it has gone meanwhile


def _is_note(value: bytes | str) -> bool:
    """Whether it is a record of attempts that are over alone, which ends by itself."""
    with suppress(ValueError):
        record: object = json.loads(value)
        return isinstance(record, dict) and "finished" in record and not record.keys() & {"needs", "second", "awaited"}
    return False
