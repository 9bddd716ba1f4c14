"""The Celery app of the demo: as anybody would write it. Only the journal is there for the show.

It also runs by itself: ``THROTTLE_URL=redis://localhost:6379/0 celery -A examples.demo.app worker``.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

from celery import Celery

from celery_throttle import Throttled
from examples.demo import journal

LIMIT = 6
PREFIX = os.environ.get("DEMO_PREFIX", "demo")

app = Celery("demo", broker=os.environ.get("THROTTLE_URL", "redis://localhost:6379/0"))
app.conf.update(
    # The permits of a worker that is gone come back after this long. 60 s by default; short here, to be seen.
    throttle_lease=3,
    # Apps that share a prefix share their limits.
    throttle_prefix=PREFIX,
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        # The broker delivers again what a lost worker had received and not yet acknowledged; after an hour by default.
        "visibility_timeout": 5,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        # The demo may be a guest on a Redis that is in use.
        "global_keyprefix": f"{PREFIX}:",
    },
)


# At most LIMIT at once, over all workers, first come first served. acks_late: a task runs again if its worker is lost.
@app.task(bind=True, base=Throttled, limit=LIMIT, acks_late=True)
def render(self: Any, frame: int) -> None:
    """Take half a second of something expensive."""
    with journal.run(frame, worker=self.request.hostname):
        time.sleep(random.uniform(0.4, 0.6))
