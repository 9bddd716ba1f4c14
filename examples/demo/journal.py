"""The journal of all runs with time and worker, written to Redis by the tasks themselves.

Times are from the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, cast

from redis import Redis

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Run:
    """One run of a task; ``stopped`` is None while the task runs, and stays None if its worker was killed."""

    frame: int
    worker: str
    started: float
    stopped: float | None = None


class Reader:
    """Reads the journal; each call reads the new lines only."""

    def __init__(self, client: Redis, prefix: str) -> None:
        self.runs: dict[str, Run] = {}
        self._client, self._key, self._seen = client, _key(prefix), 0

    def read(self) -> list[Run]:
        """Return all runs, in the order of their starts."""
        lines = cast("list[bytes]", self._client.lrange(self._key, self._seen, -1))
        self._seen += len(lines)
        for line in lines:
            identifier, at, frame, worker = json.loads(line)
            if identifier in self.runs:
                self.runs[identifier].stopped = at
            else:
                self.runs[identifier] = Run(frame, worker.partition("@")[0], at)
        return sorted(self.runs.values(), key=lambda run: run.started)


@contextmanager
def run(frame: int, *, worker: str) -> Iterator[None]:
    """Record the start and the end of a run."""
    identifier = uuid.uuid4().hex
    _write(identifier, frame, worker)
    yield
    _write(identifier, frame, worker)


def _write(identifier: str, frame: int, worker: str) -> None:
    line = json.dumps([identifier, time.monotonic(), frame, worker])
    _client().rpush(_key(os.environ.get("DEMO_PREFIX", "demo")), line)


@cache
def _client() -> Redis:
    # Made on first use, in the child, because a connection does not survive a fork.
    return Redis.from_url(os.environ.get("THROTTLE_URL", "redis://localhost:6379/0"))


def _key(prefix: str) -> str:
    return f"{prefix}:journal"
