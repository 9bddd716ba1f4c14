"""Tasks whose limits are in three groups, so in three places in Redis."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

from celery_throttle import Limit, Throttled
from tests.support.journal import Journal

app = Celery("groups", broker=os.environ.get("BROKER_URL"), backend=os.environ.get("RESULT_BACKEND"))
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=True,
    **json.loads(os.environ.get("TEST_CONF", "{}")),
)

eu, us = Limit("eu", 2, group="eu"), Limit("us", 1, group="us")


def _hold(task: Any, label: str) -> str:
    journal = Journal.from_environment()
    with journal.run(task.request, label):
        deadline = time.monotonic() + 60
        while not Path(f"{journal.path}.{label}").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
    return label


@app.task(shared=False, bind=True, base=Throttled, limit=eu)
def in_eu(self: Any, label: str) -> str:
    return _hold(self, label)


@app.task(shared=False, bind=True, base=Throttled, limit=us, singleton=True, unique_on=["label"], acks_late=True)
def in_us(self: Any, label: str) -> str:
    return _hold(self, label)


@app.task(shared=False, bind=True, base=Throttled, limit=1)
def anywhere(self: Any, label: str) -> str:
    return _hold(self, label)
