"""The Celery app of the sale: every unit that was sold is recorded as an order, at a pace that the database likes."""

from __future__ import annotations

import os
import time

from celery import Celery

from celery_throttle import Throttled
from examples.flash_sale import ledger

REDIS_URL = os.environ.get("SALE_REDIS_URL", "redis://localhost:6379/0")
WRITERS = 3

app = Celery("flash_sale", broker=REDIS_URL)
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)


# At most WRITERS at once, over all workers, however many were sold in the same second.
@app.task(base=Throttled, limit=WRITERS, acks_late=True)
def record(order_id: str, item: str, unit: int) -> None:
    """Write one order; again, if a worker was lost before it was acknowledged: the ledger keeps one."""
    began = time.monotonic()
    time.sleep(0.005)  # a database has a network in front of it; SQLite has none
    ledger.write(order_id, item, unit, began)
