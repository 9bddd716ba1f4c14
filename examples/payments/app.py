"""The Celery app of the shop: the part to copy."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

from celery_throttle import Throttled
from examples.payments import ledger, provider

REDIS_URL = os.environ.get("PAYMENTS_REDIS_URL", "redis://localhost:6379/0")

app = Celery("payments", broker=REDIS_URL, backend=REDIS_URL)
app.conf.update(
    # Seconds until the locks of a lost worker are free. 60 by default; short here, so that it can be seen.
    throttle_lease=3,
    # With late acknowledgement, the prefetched messages of a lost worker also wait for the visibility timeout.
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        # Seconds until the broker redelivers a task of a lost worker with late acknowledgement. An hour by default. In
        # production it has to be longer than the longest task and countdown.
        "visibility_timeout": 5,
        # Seconds between two searches for such tasks, from Celery 5.7 on. Older versions search every hundred seconds.
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
)


# One run for each order; for a day a repeated call gets the outcome of the first, from any publisher.
# acks_late, reject_on_worker_lost: an interrupted task runs again. Then it must not charge again, hence the token.
# autoretry_for: a run that was superseded is retried, and the retry gets the outcome of the newer run.
@app.task(
    bind=True,
    base=Throttled,
    singleton=True,
    unique_on=["order_id"],
    remember=86400,
    acks_late=True,
    reject_on_worker_lost=True,
    autoretry_for=(ledger.Superseded, provider.Refused),
    default_retry_delay=1,
)
def charge(self: Any, order_id: int, amount: int) -> str:
    """Charge an order; return the id of its one charge."""
    fence = self.fencing_token
    charged = ledger.begin(order_id, fence, worker=self.request.hostname.partition("@")[0])
    if charged:
        return charged
    return ledger.settle(order_id, fence, provider.charge(order_id, amount, fence))
