"""Two workers in one process, of which one ends before the other."""

from __future__ import annotations

from typing import Any

import pytest
from celery.backends.redis import RedisBackend
from celery.signals import task_success

from celery_throttle import Throttled
from celery_throttle.testing import ThrottleTest
from celery_throttle.worker.celery_side import remember
from celery_throttle.worker.celery_side.in_process import SharedByWorkers
from tests.support.kit import new_app, task_maker
from tests.support.waiting import HANGS_AFTER

APP = new_app("two_workers")
call = task_maker(APP)("call", base=Throttled, limit=1)


def test_worker_that_ends_leaves_the_set_up_of_the_process_to_the_other(
    throttle: ThrottleTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome of a body is kept while the result backend is away, and a success is reported at once."""
    backend: Any = RedisBackend
    store, failed = backend._store_result, list[str]()

    def fail_once(self: Any, task_id: str, *args: Any, **options: Any) -> Any:
        if failed:
            return store(self, task_id, *args, **options)
        failed.append(task_id)
        raise ConnectionError("away")

    with throttle.run_worker():
        with throttle.run_worker():
            pass
        assert reports_successes()
        monkeypatch.setattr(backend, "_store_result", fail_once)
        result = call.delay("a")
        assert result.get(timeout=HANGS_AFTER) == "a"
        assert failed == [result.id]
        throttle.assert_ran(call, times=1)


class Worker:
    """A worker of this process."""


def test_set_up_is_undone_after_the_last_worker() -> None:
    """A worker that failed before it could end, and is gone, does not keep it."""
    undone: list[str] = []
    shared = SharedByWorkers(lambda: None, lambda: undone.append("undone"))
    one, two = Worker(), Worker()
    for each in (one, two):
        shared.begin(each)
    shared.begin(Worker())
    for ended, times in ((one, 0), (one, 0), (two, 1), (two, 1)):
        shared.end(ended)
        assert undone == ["undone"] * times


def reports_successes() -> bool:
    return any(receiver is remember._succeeded for _, receiver in task_success.receivers or ())
