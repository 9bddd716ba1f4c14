"""The gate's view of Celery's pools."""

from __future__ import annotations

from celery import Celery
from celery.concurrency.prefork import TaskPool

from celery_throttle.worker.celery_side.slots import Slots


def test_a_pool_that_has_stopped_has_no_slots() -> None:
    # Tasks that it could not start are given back after that, and the reply may offer more to run.
    pool = TaskPool(2, app=Celery("slots", broker="memory://", set_as_current=False))
    slots = Slots(pool)
    pool.start()
    assert slots.size == 2
    pool.stop()
    assert slots.size == 0
