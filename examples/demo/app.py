"""The Celery app of the demo: an ordinary app, except for the journal.

The app also runs without the demo: ``THROTTLE_URL=redis://localhost:6379/0 celery -A examples.demo.app worker``.
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
    # Seconds until the permits of a lost worker are free. 60 by default; short here, so that it can be seen.
    throttle_lease=3,
    # Apps that share a prefix share their limits.
    throttle_prefix=PREFIX,
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        # Seconds until the broker redelivers unacknowledged messages of a lost worker. An hour by default.
        "visibility_timeout": 5,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        # A prefix of its own, since the Redis may be used by other programs.
        "global_keyprefix": f"{PREFIX}:",
    },
)


# At most LIMIT at once, over all workers, first come first served. acks_late: a task runs again if its worker is lost.
@app.task(bind=True, base=Throttled, limit=LIMIT, acks_late=True)
def render(self: Any, frame: int) -> None:
    """Do half a second of expensive work."""
    with journal.run(frame, worker=self.request.hostname):
        time.sleep(random.uniform(0.4, 0.6))
