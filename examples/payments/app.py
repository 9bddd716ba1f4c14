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
    # The lock of a run whose worker is gone is free after this long. 60 s by default; short here, to be seen.
    throttle_lease=3,
    # With late acknowledgement, what a worker has set aside would wait for the visibility timeout, too, if it is lost.
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        # A task that is acknowledged late comes back from a lost worker only after this; after an hour by default. In
        # earnest it has to be longer than the longest task and countdown.
        "visibility_timeout": 5,
        # How often workers look for such tasks; from Celery 5.7 on. Before, it is every hundred seconds.
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
)


# One run for each order, whoever publishes it, and for a day its outcome is the answer to whoever publishes it again.
# acks_late, reject_on_worker_lost: it runs again if it was cut short. Then it must not charge again, hence the token.
# A run whose place a newer one has taken is tried again, only to be given the outcome of that one.
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
