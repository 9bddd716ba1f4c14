"""The operators' reading of large stores takes many short scripts, and no long one."""

from __future__ import annotations

from typing import Any

from redis import Redis

from celery_throttle.control.reader import readers
from tests.store.lock_caller import PLAN, LockCaller
from tests.store.test_pages import MOST_COMMANDS, Longest


def test_ids_of_many_parked_duplicates_take_short_scripts(app: Any, redis: Redis) -> None:
    """The record of each shows whether it waits for an outcome."""
    worker = LockCaller(redis, "aaaaaaaa", "q")
    worker.start("first", PLAN)
    for number in range(600):
        worker.put_once(f"duplicate {number}", PLAN)
    (reader,) = readers(app)
    reader.ask = longest = Longest(redis)
    assert len({each.task for each in reader.parked_ids(None)}) == 600
    assert longest.commands < MOST_COMMANDS
