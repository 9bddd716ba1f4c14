"""Tasks that wait for the test, and two receivers of all our signals: one raises, one writes down its signals.

It also writes down our log records.
"""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from celery import Celery

from celery_throttle import Throttled, signals
from tests.support.journal import VARIABLE, Journal

app = Celery("told", broker=os.environ.get("BROKER_URL"), backend=os.environ.get("RESULT_BACKEND"))
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=True,
    **json.loads(os.environ.get("TEST_CONF", "{}")),
)


def _hold(task: Any, label: str) -> str:
    journal = Journal.from_environment()
    with journal.run(task.request, label):
        while not Path(f"{journal.path}.{label}").exists():
            time.sleep(0.005)
    return label


@app.task(shared=False, bind=True, base=Throttled, limit=1)
def hold(self: Any, label: str) -> str:
    return _hold(self, label)


@app.task(shared=False, bind=True, base=Throttled, singleton=True, on_conflict="skip")
def once(self: Any, label: str) -> str:
    return _hold(self, label)


class _Records(logging.Handler):
    """Writes down the fields that log records of tasks have beside their message."""

    def emit(self, record: logging.LogRecord) -> None:
        told = {name: getattr(record, name) for name in ("action", "task_id", "task_name") if hasattr(record, name)}
        if told:
            Journal.note("record", **told)


logging.getLogger("celery_throttle").addHandler(_Records())


def _raise(**_: Any) -> None:
    if VARIABLE in os.environ:  # other tests have healthy receivers
        raise RuntimeError("a receiver that is broken")


def _write(signal: Any, sender: str, event: Any, **_: Any) -> None:
    Journal.note("heard", signal=signal.name, sender=sender, what=asdict(event), at=os.getpid())


for _name in ("task_parked", "task_resumed", "permit_reclaimed", "lease_lost", "duplicate_dropped", "limit_changed"):
    # Once in a process, however often this is imported.
    getattr(signals, _name).connect(_raise, weak=False, dispatch_uid="raise")
    getattr(signals, _name).connect(_write, weak=False, dispatch_uid="write")
