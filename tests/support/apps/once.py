"""Tasks that run once, and hold until the test lets them go (`Journal.let_go`)."""

from __future__ import annotations

import os
import time
from typing import Any

from celery.app.backends import by_url

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
make_quick = task_maker(app, _quick)

hold = make_held("hold", base=Throttled, singleton=True)
hold_late = make_held("hold_late", base=Throttled, singleton=True, acks_late=True)
# With a limit as well.
hold_one = make_held("hold_one", base=Throttled, singleton=True, limit=1)


_elsewhere: Any = by_url((os.environ.get("RESULT_BACKEND") or "redis://").rpartition("/")[0] + "/7", app.loader)


@app.task(shared=False, bind=True, base=Throttled, singleton=True, backend=_elsewhere[0](app=app, url=_elsewhere[1]))
def hold_elsewhere(self: Any, label: str) -> str:
    """Its results are in a backend of its own."""
    _hold(self, label)
    if label == "fails":
        raise ValueError(label)
    return label


# With a line for one.
hold_full = make_held("hold_full", base=Throttled, singleton=True, limit=1, max_parked=1)
quick = make_quick("quick", base=Throttled, singleton=True)
hold_remembered = make_held("hold_remembered", base=Throttled, singleton=True, remember=600, acks_late=True)
# Acknowledged before it runs.
hold_remembered_early = make_held("hold_remembered_early", base=Throttled, singleton=True, remember=600)


@app.task(shared=False, bind=True, base=Throttled, singleton=True, unique_on=["order"], remember=600, acks_late=True)
def charge(self: Any, order: str, amount: int = 0) -> str:
    _quick(self, order)
    return f"{order}: {amount}"


hold_raise = make_held("hold_raise", base=Throttled, singleton=True, on_conflict="raise")
hold_skip = make_held("hold_skip", base=Throttled, singleton=True, on_conflict="skip")
hold_replace = make_held("hold_replace", base=Throttled, singleton=True, unique_on=[], on_conflict="replace")


@app.task(shared=False, bind=True, base=Throttled, singleton=True, unique_on=["label"], on_conflict="replace", limit=1)
def hold_newest(self: Any, label: str, payload: object = None) -> str:
    """With a limit as well."""
    _hold(self, label)
    return f"{label}: {payload}"


@app.task(shared=False, bind=True, base=Throttled, singleton=True, unique_on=[], on_conflict="keep_last")
def hold_last(self: Any, label: str, payload: object = None) -> str:  # noqa: ARG001 - for its publisher
    return _hold(self, label)


hold_started = make_held("hold_started", base=Throttled, singleton=True, lock_until="started")


@app.task(shared=False, bind=True, base=Throttled, singleton=True, lock_until="expires")
def fails(self: Any, label: str) -> None:
    _quick(self, label)
    raise ValueError(label)


@app.task(shared=False, bind=True, base=Throttled, singleton=True)
def fails_finished(self: Any, label: str) -> None:
    _hold(self, label)
    raise ValueError(label)


hourly = make_quick("hourly", base=Throttled, singleton=True, lock_until="expires", lock_ttl=3)
quick_expiring = make_quick("quick_expiring", base=Throttled, singleton=True, lock_ttl=5, expires=600)


@app.task(shared=False, bind=True, base=Throttled, singleton=True, max_retries=2)
def retries(self: Any, label: str) -> str:
    """Fails twice, then holds."""
    if self.request.retries < self.max_retries:
        _quick(self, label)
        raise self.retry(countdown=0.2)
    return _hold(self, label)


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


@app.task(shared=False, bind=True)
def note_error(self: Any, task_id: str, label: str) -> None:
    """A callback for errors."""
    with Journal.from_environment().run(self.request, f"{label}: {self.AsyncResult(task_id).result}"):
        pass
