"""The app of a run of chaos, in one of two releases."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

from celery import Celery
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from celery_throttle import Limit, RateLimited, Throttled
from celery_throttle.signals import (
    LeaseLost,
    TaskParked,
    duplicate_dropped,
    lease_lost,
    permit_reclaimed,
    task_parked,
    task_resumed,
)
from tests.chaos.kinds import KINDS, LEASE, Kind
from tests.support.journal import Journal

__all__ = ["app"]

_RETRIES = 2
#: Seconds.
_FAN_FOR = 0.5


def _note_parked(event: TaskParked, **_: object) -> None:
    Journal.note("parked", task_id=event.task_id)


def _be_odd(event: object, **_: object) -> None:
    """Raise, exit or take long now and then, as a receiver may; longer than a lease where a lease is lost."""
    chance = random.random()
    if chance < 0.02:
        raise SystemExit(3)
    if chance < 0.04:
        raise ValueError("a receiver of chaos")
    if isinstance(event, LeaseLost):
        time.sleep(LEASE * 1.5)
    elif chance < 0.06:
        time.sleep(0.2)


task_parked.connect(_note_parked)
for _signal in (task_parked, task_resumed, lease_lost, permit_reclaimed, duplicate_dropped):
    _signal.connect(_be_odd)


def _limits(release: int) -> dict[str, Limit]:
    alone = {"early": 3, "late": 3, "again": 2, "told": 2, "ends": 2, "api": 4, "heavy": 4, "timed": 3}
    shared, paced = ((3, "8/s"), (4, "6/s"))[release]
    return {
        **{name: Limit(name, permits) for name, permits in alone.items()},
        **{name: Limit(name, 1, key="who") for name in ("keyed", "tenant")},
        "shared": Limit("shared", shared),
        "paced": Limit("paced", rate=paced, burst=2),
    }


def _make_app(release: int) -> Any:
    """Return the app of a release: the second has other numbers, and a task less."""
    app = Celery("chaos", broker=os.environ.get("BROKER_URL"), backend=os.environ.get("RESULT_BACKEND"))
    app.conf.update(
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=False,
        result_expires=300,
        **json.loads(os.environ.get("TEST_CONF", "{}")),
    )
    limits = _limits(release)
    for kind in KINDS:
        if not release or kind.name != "leaving":
            _declare(app, kind, [limits[name] for name in kind.limits])
    _declare_claimed(app)
    return app


def _declare_claimed(app: Any) -> None:
    """Declare the singleton that ``fan`` publishes."""

    def claimed(self: Any, order: str) -> str:
        Journal.note("claimed", task_id=self.request.id)
        return order

    app.task(claimed, name="chaos.claimed", bind=True, shared=False, base=Throttled, singleton=True)


def _declare(app: Any, kind: Kind, limits: list[Limit]) -> None:
    def body(self: Any, label: str, seconds: float, who: str = "", size: int = 1, order: str = "") -> str:  # noqa: ARG001
        with Journal.from_environment().run(self.request, label):
            if kind.name == "fan":
                _fan_out(self, label)
            time.sleep(seconds)
            _then(self, kind.then, label)
        return label

    options: dict[str, Any] = {"base": Throttled, "limit": limits or None} if kind.throttled else {}
    if kind.by_size:
        options["cost"] = "size"
    if kind.once:
        options |= {"singleton": True, "unique_on": ["order"], "remember": kind.remember}
    if kind.name == "timed":
        options["time_limit"] = 1
    if kind.name == "fan":
        options["soft_time_limit"] = _FAN_FOR
    options |= {"max_retries": _RETRIES, "acks_late": kind.late}
    app.task(body, name=f"chaos.{kind.name}", bind=True, shared=False, **options)


def _fan_out(task: Any, label: str) -> None:
    """Publish singletons until the soft time limit comes, amid a call; pools without one stop by themselves."""
    try:
        time.sleep(_FAN_FOR * random.uniform(0.9, 1.0))
        for number in range(100):
            sent = task.app.tasks["chaos.claimed"].delay(f"{label} {number}")
            Journal.note("sent", task_id=sent.id)
    except SoftTimeLimitExceeded:
        pass


def _then(task: Any, what: str, label: str) -> None:
    if what == "fail":
        raise ValueError(label)
    if what == "ignore":
        raise Ignore
    if what == "reject":
        raise Reject("not at all", requeue=False)
    if what == "retry" and task.request.retries < _RETRIES:
        raise task.retry(countdown=0.1)
    if what == "requeue" and _is_first(label):
        raise Reject("not now", requeue=True)
    if what == "slow_down" and _is_first(label):
        raise RateLimited(0.2)


def _is_first(label: str) -> bool:
    """Return whether this is the first request for this label."""
    marks = Path(f"{Journal.from_environment().path}.marks")
    marks.mkdir(exist_ok=True)
    try:
        (marks / label).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


app = _make_app(int(os.environ.get("CHAOS_RELEASE", "0")))
