"""The places of tasks whose worker had them for a while, by the clock of the worker."""

from __future__ import annotations

from redis import Redis

from celery_throttle import Limit
from tests.primitives.faults import StoreClock
from tests.store.caller import Caller
from tests.store.peek import peek

ONE = Limit("one", 1)
#: Seconds of the worker's clock at its first call.
BEGAN = 10.0


def test_older_tasks_of_a_slower_call_are_before_the_newer_ones(
    worker: Caller, redis: Redis, clock: StoreClock
) -> None:
    """After an outage the younger tasks, which need no slot, may be parked first, by a faster call."""
    came = {"t1": 9.985, "t2": 9.990, "t3": 9.992, "t4": 9.995}

    def park(at: float, *tasks: str) -> None:
        worker.exchange(parked=[worker.parcel(each, ONE, age=at - came[each]) for each in tasks], clock=at)

    worker.take("holds", ONE)
    park(BEGAN, "t2", "t4")
    clock.move(30_000)  # microseconds
    park(BEGAN + 0.01, "t1", "t3")
    assert peek(redis).waiting("one") == ["t1", "t2", "t3", "t4"]
