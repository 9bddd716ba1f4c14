"""The Celery app of the sale: records every sold unit as an order, with few writers at once."""

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


# At most WRITERS at once, over all workers, also when many units are sold in the same second.
@app.task(base=Throttled, limit=WRITERS, acks_late=True)
def record(order_id: str, item: str, unit: int) -> None:
    """Write one order. After a lost worker the task may run twice; the ledger keeps one row."""
    began = time.monotonic()
    time.sleep(0.005)  # a database has a network in front of it; SQLite has none
    ledger.write(order_id, item, unit, began)
