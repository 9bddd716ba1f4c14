"""Tasks that wait until the test lets them go, share limits over queues, and use the features of Celery's tasks."""

from __future__ import annotations

import json
import os
import time
from hashlib import sha256
from typing import Any

from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.signals import task_prerun

from celery_throttle import Limit, Throttled
from tests.support.apps import new_app, run_for, run_held, task_maker
from tests.support.filesystem import make_safe
from tests.support.journal import Journal

LONGEST_WAIT = 60.0

if os.environ.get("BROKER_URL", "").startswith("filesystem:"):
    make_safe()

app = new_app("features")

gpu = Limit("gpu", 4)
single = Limit("single", 1)
seen = Limit("seen", 1)


@task_prerun.connect
def _note_prerun(task_id: str, task: Any, **_: Any) -> None:
    Journal.note("prerun", task_id=task_id, task=task.name)


make_held = task_maker(app, run_held)
make_timed = task_maker(app, run_for)

plain = make_timed("plain")
plain_hold = make_held("plain_hold")
work = make_timed("work", base=Throttled, limit=2)
work_late = make_timed("work_late", base=Throttled, limit=2, acks_late=True)
five = make_held("five", base=Throttled, limit=5)
train = make_held("train", base=Throttled, limit=gpu)
predict = make_held("predict", base=Throttled, limit=gpu)
one = make_timed("one", base=Throttled, limit=single)
one_late = make_timed("one_late", base=Throttled, limit=single, acks_late=True)
one_hold = make_held("one_hold", base=Throttled, limit=single)
# Celery's own, local rate limit together with ours.
rated = make_timed("rated", base=Throttled, limit=2, rate_limit="20/s")


# -- the end of a task -------------------------------------------------------------------------------------------------


@app.task(shared=False, bind=True, base=Throttled, limit=single, max_retries=3)
def retry(self: Any, label: str, times: int = 2) -> str:
    """Retries itself, and writes how often Celery has counted."""
    with Journal.from_environment().run(self.request, label):
        if self.request.retries < times:
            raise self.retry(countdown=0)
    return label


@app.task(
    shared=False,
    bind=True,
    base=Throttled,
    limit=single,
    autoretry_for=(ValueError,),
    max_retries=2,
    retry_backoff=False,
    default_retry_delay=0,
)
def auto_retry(self: Any, label: str) -> None:
    """Fails always."""
    with Journal.from_environment().run(self.request, label):
        raise ValueError(label)


@app.task(shared=False, bind=True, base=Throttled, limit=single)
def replace(self: Any, label: str) -> None:
    with Journal.from_environment().run(self.request, label):
        raise self.replace(one.s(f"{label}-replaced"))


@app.task(shared=False, bind=True, base=Throttled, limit=single)
def replace_by_chain(self: Any, label: str) -> None:
    """The last of the chain has the id of the task that it replaces, long after that has ended."""
    raise self.replace(one.s(f"{label}-first") | follow.s(f"{label}-last"))


@app.task(shared=False, bind=True, base=Throttled, limit=single)
def ignore(self: Any, label: str) -> None:
    with Journal.from_environment().run(self.request, label):
        raise Ignore


def _reject(task: Any, label: str, *, requeue: bool, runs: int) -> str:
    """Reject until this label ran so often."""
    with Journal.from_environment().run(task.request, label):
        if len(Journal.from_environment().runs(label)) < runs:
            raise Reject("not now", requeue=requeue)
    return label


@app.task(shared=False, bind=True, base=Throttled, limit=single)
def reject(self: Any, label: str, *, requeue: bool = False, runs: int = 2) -> str:
    return _reject(self, label, requeue=requeue, runs=runs)


@app.task(shared=False, bind=True, base=Throttled, limit=single, acks_late=True)
def reject_late(self: Any, label: str, *, requeue: bool = False, runs: int = 2) -> str:
    return _reject(self, label, requeue=requeue, runs=runs)


@app.task(shared=False, bind=True, base=Throttled, limit=single)
def soft_limited(self: Any, label: str) -> str:
    """Runs until its soft time limit."""
    with Journal.from_environment().run(self.request, label):
        try:
            time.sleep(LONGEST_WAIT)
        except SoftTimeLimitExceeded:
            return f"{label}: soft limit"
    return label


@app.task(shared=False, bind=True, base=Throttled, limit=single)
def hard_limited(self: Any, label: str) -> str:
    """Runs until its hard time limit."""
    with Journal.from_environment().run(self.request, label):
        time.sleep(LONGEST_WAIT)
    return label


# -- the view of a task ------------------------------------------------------------------------------------------------


# Keeps the permit that ``echo`` needs.
blocker = make_held("blocker", base=Throttled, limit=seen)


def _short(value: Any) -> Any:
    """Replace long texts by their digest: a line of the journal is read while others are written."""
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(item) for item in value]
    if isinstance(value, str) and len(value) > 200:
        return f"{len(value)}:{sha256(value.encode()).hexdigest()}"
    return value


@app.task(shared=False, bind=True, base=Throttled, limit=seen)
def echo(self: Any, *args: Any, **kwargs: Any) -> str:
    """Write everything that the task sees of itself."""
    request = {name: value for name, value in vars(self.request).items() if not name.startswith("_")}
    text = json.dumps([_short(request), _short(list(args)), _short(kwargs)], sort_keys=True, default=repr)
    Journal.from_environment().write("seen", task_id=self.request.id, text=text)
    return "echo"


@app.task(shared=False, bind=True)
def linked(self: Any, *args: Any) -> str:
    return run_for(self, f"linked:{args[-1]}")


@app.task(shared=False, bind=True)
def on_error(self: Any, *_: Any) -> str:
    return run_for(self, "on_error")


@app.task(shared=False, bind=True, base=Throttled, limit=seen)
def fail(self: Any, label: str) -> None:
    with Journal.from_environment().run(self.request, label):
        raise ValueError(label)


@app.task(shared=False, bind=True)
def collect(self: Any, labels: list[str], label: str = "collect") -> list[str]:
    """The end of a chord."""
    run_for(self, label)
    return sorted(labels)


@app.task(shared=False, bind=True, base=Throttled, limit=single)
def follow(self: Any, before: str, label: str) -> str:
    """A link of a chain."""
    run_for(self, label)
    return f"{before}>{label}"
