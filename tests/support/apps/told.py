"""Tasks that wait for the test, and two receivers of all our signals: one raises, one writes down its signals.

It also writes down our log records.
"""

from __future__ import annotations

import logging
import os
from dataclasses import asdict
from typing import Any

from celery_throttle import Throttled, signals
from tests.support.apps import new_app, run_held
from tests.support.journal import VARIABLE, Journal

app = new_app("told")


@app.task(shared=False, bind=True, base=Throttled, limit=1)
def hold(self: Any, label: str) -> str:
    return run_held(self, label)


@app.task(shared=False, bind=True, base=Throttled, singleton=True, on_conflict="skip")
def once(self: Any, label: str) -> str:
    return run_held(self, label)


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
