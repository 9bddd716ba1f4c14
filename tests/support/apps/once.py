"""Tasks that run once, and hold until the test lets them go (`Journal.let_go`)."""

from __future__ import annotations

import os
import time
from typing import Any

from celery_throttle import Throttled
from tests.support.apps import new_app, task_maker
from tests.support.journal import Journal

if "CLOCK_SKEW" in os.environ:
    # A machine whose clock is wrong.
    _time, _skew = time.time, float(os.environ["CLOCK_SKEW"])
    time.time = lambda: _time() + _skew

app = new_app("once")


def _token(task: Any) -> int | None:
    return task.fencing_token if task.singleton else None


def _hold(task: Any, label: str) -> str:
    journal = Journal.from_environment()
    with journal.run(task.request, label):
        journal.write("fence", label=label, task_id=task.request.id, token=_token(task))
        journal.wait_let_go(label)
    return label


def _quick(task: Any, label: str) -> str:
    journal = Journal.from_environment()
    with journal.run(task.request, label):
        journal.write("fence", label=label, task_id=task.request.id, token=_token(task))
    return label


make_held = task_maker(app, _hold)

hold = make_held("hold", base=Throttled, singleton=True)
hold_late = make_held("hold_late", base=Throttled, singleton=True, acks_late=True)
# With a limit as well.
hold_one = make_held("hold_one", base=Throttled, singleton=True, limit=1)
hold_remembered = make_held("hold_remembered", base=Throttled, singleton=True, remember=600, acks_late=True)
# Acknowledged before it runs.
hold_remembered_early = make_held("hold_remembered_early", base=Throttled, singleton=True, remember=600)
hold_raise = make_held("hold_raise", base=Throttled, singleton=True, on_conflict="raise")
hold_skip = make_held("hold_skip", base=Throttled, singleton=True, on_conflict="skip")
hold_replace = make_held("hold_replace", base=Throttled, singleton=True, unique_on=[], on_conflict="replace")
hold_last = make_held("hold_last", base=Throttled, singleton=True, unique_on=[], on_conflict="keep_last")
hold_started = make_held("hold_started", base=Throttled, singleton=True, lock_until="started")


@app.task(shared=False, bind=True, base=Throttled, singleton=True, lock_until="started", on_conflict="raise")
def again_started(self: Any, label: str) -> str:
    """Is tried again."""
    _hold(self, label)
    if not self.request.retries:
        raise self.retry(countdown=0)
    return label


@app.task(shared=False, bind=True, base=Throttled, singleton=True)
def takes(self: Any, todo: list[str]) -> str:
    """Takes one from its own list at each attempt."""
    label = _quick(self, todo.pop())
    if todo:
        raise self.retry(countdown=0)
    return label


@app.task(shared=False, bind=True, base=Throttled, singleton=True, limit=1)
def takes_one(self: Any, todo: list[str]) -> str:
    """The same, with a limit; holds while there is more."""
    if len(todo) > 1:
        _hold(self, todo.pop())
        raise self.retry(countdown=0)
    return _quick(self, todo.pop())


@app.task(
    shared=False, bind=True, base=Throttled, singleton=True, retry_on_worker_lost=True, default_retry_delay=0
)  # fmt: skip
def dies(self: Any, label: str, number: int = 0) -> str:
    """Its process is lost at the first attempt."""
    _quick(self, label)
    if not self.request.retries:
        os._exit(3)
    return f"{label} {number}"


@app.task(
    shared=False, bind=True, base=Throttled, limit=1, max_parked=1, retry_on_worker_lost=True, default_retry_delay=0
)  # fmt: skip
def dies_full(self: Any, label: str) -> str:
    """No singleton: its line may be full when its process is lost."""
    if label == "dies" and not self.request.retries:
        _hold(self, label)
        os._exit(3)
    return _quick(self, label)


@app.task(shared=False, bind=True, base=Throttled, singleton=True, on_conflict="raise")
def again(self: Any, label: str, first: bool = False) -> str:
    """The first holds and is tried again."""
    if first and not self.request.retries:
        _hold(self, label)
        raise self.retry(args=[label], kwargs={"first": first}, countdown=1)
    return _hold(self, f"{label}2")


@app.task(shared=False, bind=True, base=Throttled, singleton=True)
def gives_place(self: Any, label: str, to: str) -> str:
    """Replaces itself with another singleton, and is not over yet when that comes to a worker."""
    try:
        return str(self.replace(hold.s(to)))
    finally:
        _hold(self, label)


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
