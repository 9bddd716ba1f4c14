"""Singletons that can do with a result backend that answers the caller alone: ``rpc://``."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

from celery_throttle import Throttled
from tests.support.journal import Journal

app = Celery("answers", broker=os.environ.get("BROKER_URL"), backend=os.environ.get("RESULT_BACKEND"))
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=True,
    **json.loads(os.environ.get("TEST_CONF", "{}")),
)


def _hold(task: Any, label: str) -> str:
    journal = Journal.from_environment()
    with journal.run(task.request, label):
        deadline = time.monotonic() + 60
        while not Path(f"{journal.path}.{label}").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
    return label


@app.task(shared=False, bind=True, base=Throttled, singleton=True, on_conflict="skip")
def skip(self: Any, label: str) -> str:
    return _hold(self, label)


@app.task(shared=False, bind=True, base=Throttled, singleton=True, on_conflict="raise")
def raises(self: Any, label: str) -> str:
    return _hold(self, label)


@app.task(shared=False, bind=True, base=Throttled, singleton=True, unique_on=[], on_conflict="keep_last")
def last(self: Any, label: str) -> str:
    return _hold(self, label)


@app.task(shared=False, bind=True, base=Throttled, singleton=True, ignore_result=True)
def ignored(self: Any, label: str) -> str:
    return _hold(self, label)
