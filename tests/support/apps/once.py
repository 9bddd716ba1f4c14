"""Tasks that run once, and hold until the test lets them go (`Journal.let_go`)."""

from __future__ import annotations

import os
import time
from typing import Any

from celery_throttle import Throttled
from tests.support.apps import new_app, run_for, run_held, task_maker
from tests.support.journal import Journal

if "CLOCK_SKEW" in os.environ:
    # A machine whose clock is wrong.
    _time, _skew = time.time, float(os.environ["CLOCK_SKEW"])
    time.time = lambda: _time() + _skew

app = new_app("once")


make_held = task_maker(app, run_held)

hold = make_held("hold", base=Throttled, singleton=True)
hold_late = make_held("hold_late", base=Throttled, singleton=True, acks_late=True)
# With a limit as well.
hold_one = make_held("hold_one", base=Throttled, singleton=True, limit=1)
hold_remembered = make_held("hold_remembered", base=Throttled, singleton=True, remember=600, acks_late=True)
# Acknowledged before it runs.
hold_remembered_early = make_held("hold_remembered_early", base=Throttled, singleton=True, remember=600)
hold_raise = make_held("hold_raise", base=Throttled, singleton=True, on_conflict="raise")


@app.task(
    shared=False, bind=True, base=Throttled, singleton=True, retry_on_worker_lost=True, default_retry_delay=0
)  # fmt: skip
def dies(self: Any, label: str, number: int = 0) -> str:
    """Its process is lost at the first attempt."""
    run_for(self, label)
    if not self.request.retries:
        os._exit(3)
    return f"{label} {number}"


@app.task(
    shared=False, bind=True, base=Throttled, limit=1, max_parked=1, retry_on_worker_lost=True, default_retry_delay=0
)  # fmt: skip
def dies_full(self: Any, label: str) -> str:
    """No singleton: its line may be full when its process is lost."""
    if label == "dies" and not self.request.retries:
        run_held(self, label)
        os._exit(3)
    return run_for(self, label)


@app.task(shared=False, bind=True)
def collect(self: Any, labels: list[str], label: str = "collect") -> list[str]:
    """The end of a chord."""
    with Journal.from_environment().run(self.request, label):
        return sorted(labels)


@app.task(shared=False, bind=True)
def note(self: Any, outcome: object, label: str) -> str:
    """A callback."""
    with Journal.from_environment().run(self.request, f"{label}: {outcome}"):
        return label
