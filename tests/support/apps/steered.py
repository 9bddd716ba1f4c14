"""Tasks of limits that are steered at run time, in workers that look for work on their own only once an hour."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

from celery_throttle import Limit, Throttled
from tests.support.journal import Journal
from tests.support.looks import look_every

# Each start follows a hint, or comes at the time that the store gave.
look_every(3600)

app = Celery("steered", broker=os.environ.get("BROKER_URL"), backend=os.environ.get("RESULT_BACKEND"))
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=True,
    throttle_lease=7200,
    **json.loads(os.environ.get("TEST_CONF", "{}")),
)

api = Limit("api", 1)
pair = Limit("pair", 2)
tenant = Limit("tenant", 1, key="tenant_id")


def _run(task: Any, label: str, *, hold: bool) -> str:
    journal = Journal.from_environment()
    with journal.run(task.request, label):
        deadline = time.monotonic() + 60
        while hold and not Path(f"{journal.path}.{label}").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    return label


@app.task(shared=False, bind=True, base=Throttled, limit=api)
def call(self: Any, label: str) -> str:
    return _run(self, label, hold=True)


@app.task(shared=False, bind=True, base=Throttled, limit=pair)
def work(self: Any, label: str) -> str:
    return _run(self, label, hold=True)


@app.task(shared=False, bind=True, base=Throttled, limit=tenant)
def serve(self: Any, label: str, tenant_id: str, *, hold: bool = True) -> str:  # noqa: ARG001 - the key
    return _run(self, label, hold=hold)


@app.task(shared=False, bind=True, base=Throttled, limit=[api, tenant])
def both(self: Any, label: str, tenant_id: str) -> str:  # noqa: ARG001 - the key
    return _run(self, label, hold=True)


@app.task(shared=False, bind=True, base=Throttled, rate="1/h")
def mail(self: Any, label: str) -> str:
    return _run(self, label, hold=False)


@app.task(shared=False, bind=True, base=Throttled, singleton=True)
def once(self: Any, label: str) -> str:
    return _run(self, label, hold=True)


@app.task(shared=False, bind=True, base=Throttled, limit=api, singleton=True)
def pay(self: Any, label: str) -> str:
    return _run(self, label, hold=True)


@app.task(shared=False, bind=True)
def plain(self: Any, label: str) -> str:
    return _run(self, label, hold=False)
