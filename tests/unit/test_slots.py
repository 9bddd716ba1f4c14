"""What the gate knows of Celery's pools."""

from __future__ import annotations

from celery import Celery
from celery.concurrency.prefork import TaskPool

from celery_throttle.worker.celery_side.slots import Slots


def test_a_pool_that_has_stopped_has_no_slots() -> None:
    # What it could not start is given back after that, and the reply may say that more could run.
    pool = TaskPool(2, app=Celery("slots", broker="memory://", set_as_current=False))
    slots = Slots(pool)
    pool.start()
    assert slots.size == 2
    pool.stop()
    assert slots.size == 0
