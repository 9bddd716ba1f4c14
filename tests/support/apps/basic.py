"""The app that most worker tests run: ``celery -A tests.support.apps.basic worker`` with the variables read below."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery import Celery

from celery_throttle import Throttled
from tests.support.journal import Journal

# Not shared: each import of this module is an app of its own, in the same process too.
app = Celery("basic", broker=os.environ.get("BROKER_URL"), backend=os.environ.get("RESULT_BACKEND"))
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=True,
    **json.loads(os.environ.get("TEST_CONF", "{}")),
)


def _record(task: Any, label: str, seconds: float) -> str:
    with Journal.from_environment().run(task.request, label):
        time.sleep(seconds)
    return label


@app.task(shared=False, bind=True)
def plain(self: Any, label: str, seconds: float = 0.0) -> str:
    """Not throttled."""
    return _record(self, label, seconds)


@app.task(shared=False, bind=True, base=Throttled, limit=2)
def work(self: Any, label: str, seconds: float = 0.0) -> str:
    return _record(self, label, seconds)


@app.task(shared=False, bind=True, base=Throttled, limit=2, acks_late=True)
def work_late(self: Any, label: str, seconds: float = 0.0) -> str:
    return _record(self, label, seconds)


@app.task(shared=False, bind=True, base=Throttled, limit=2, acks_late=True, reject_on_worker_lost=True)
def work_again(self: Any, label: str, seconds: float = 0.0) -> str:
    """Late acknowledgement, and run again when the child that ran it is lost."""
    return _record(self, label, seconds)


@app.task(shared=False, bind=True, base=Throttled, limit=1)
def one(self: Any, label: str, seconds: float = 0.0) -> str:
    return _record(self, label, seconds)


@app.task(shared=False, bind=True, base=Throttled, limit=2)
def fail(self: Any, label: str, seconds: float = 0.0) -> None:
    with Journal.from_environment().run(self.request, label):
        time.sleep(seconds)
        raise ValueError(label)


@app.task(shared=False, bind=True, base=Throttled, limit=2, max_retries=2)
def retry(self: Any, label: str, seconds: float = 0.0) -> str:
    """Fails twice, then succeeds."""
    with Journal.from_environment().run(self.request, label):
        time.sleep(seconds)
        if self.request.retries < self.max_retries:
            raise self.retry(countdown=0)
    return label


@app.task(shared=False, bind=True)
def collect(self: Any, labels: list[str], label: str = "collect") -> list[str]:
    """The end of a chord."""
    _record(self, label, 0.0)
    return sorted(labels)
