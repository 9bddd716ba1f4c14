"""Renewals of a worker in data that began after its last call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

from celery_throttle import Limit
from celery_throttle.store.scripts import execute
from celery_throttle.worker.runs import Permit
from celery_throttle.worker.store_side.renewals import renewals
from tests.store.peek import peek
from tests.store.terms_caller import TermsCaller

GPU = Limit("gpu", 1)


@pytest.mark.parametrize("goes_back", [False, True])
def test_emptied_store_gets_the_holders_but_none_that_goes_back(
    worker: TermsCaller, redis: Redis, *, goes_back: bool
) -> None:
    """A call to the lost data may have put the task back in line, and its answer may be on its way."""
    run: Any = SimpleNamespace(arrival=worker.take("t1", GPU))
    permit = Permit(run)
    if goes_back:
        permit.go_back()
    redis.flushall()
    worker.declare(GPU)
    birth = ""
    for _ in range(2):  # the first answer has only the birth of the new data
        ((_, call),) = renewals(worker.store, worker.name, 7, [permit], birth)
        answer: Any = execute(redis, call)
        birth = answer[2].decode()
    assert peek(redis).holders("gpu") == ([] if goes_back else ["t1"])
