"""The tasks of a run of chaos, as a release of the app declares them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery
from celery.exceptions import Ignore, Reject

from celery_throttle import Limit, RateLimited, Throttled
from celery_throttle.signals import TaskParked, task_parked
from tests.chaos.kinds import KINDS, Kind
from tests.support.journal import Journal

__all__ = ["make_app"]

_RETRIES = 2


def _note_parked(event: TaskParked, **_: object) -> None:
    Journal.note("parked", task_id=event.task_id)


task_parked.connect(_note_parked)


def make_app(*, shared: int, paced: str, without: str = "") -> Any:
    """Return the app of a release, with its differences from the others."""
    app = Celery("chaos", broker=os.environ.get("BROKER_URL"), backend=os.environ.get("RESULT_BACKEND"))
    app.conf.update(
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=False,
        result_expires=300,
        **json.loads(os.environ.get("TEST_CONF", "{}")),
    )
    options = _options(shared, paced)
    for kind in KINDS:
        if kind.name != without:
            _declare(app, kind, options.get(kind.name, {}))
    return app


def _options(shared: int, paced: str) -> Mapping[str, dict[str, Any]]:
    early, late, again = Limit("early", 3), Limit("late", 3), Limit("again", 2)
    both, keyed, told, ends = Limit("shared", shared), Limit("keyed", 1, key="who"), Limit("told", 2), Limit("ends", 2)
    once = {"singleton": True, "unique_on": ["order"]}
    return {
        "early": {"limit": early},
        "late": {"limit": late},
        "leaving": {"limit": late},
        "shared_early": {"limit": both},
        "shared_late": {"limit": both},
        "keyed": {"limit": keyed},
        "keyed_early": {"limit": keyed},
        "paced": {"limit": Limit("paced", rate=paced, burst=2)},
        "heavy": {"limit": Limit("heavy", 4), "cost": "size"},
        "two": {"limit": [Limit("api", 4), Limit("tenant", 1, key="who")]},
        "once": once | {"remember": 600},
        "once_early": once | {"limit": early},
        "once_fails": once,
        "retrying": {"limit": again, "max_retries": _RETRIES},
        "retrying_early": {"limit": again, "max_retries": _RETRIES},
        "told": {"limit": told},
        "told_early": {"limit": told},
        **{name: {"limit": ends} for name in ("failing", "ignoring", "rejecting", "requeueing", "expiring")},
        "timed": {"limit": Limit("timed", 3), "time_limit": 1},
    }


def _declare(app: Any, kind: Kind, options: dict[str, Any]) -> None:
    def body(self: Any, label: str, seconds: float, who: str = "", size: int = 1, order: str = "") -> str:  # noqa: ARG001
        with Journal.from_environment().run(self.request, label):
            time.sleep(seconds)
            _then(self, kind.then, label)
        return label

    if kind.throttled:
        options = options | {"base": Throttled}
    app.task(body, name=f"chaos.{kind.name}", bind=True, shared=False, acks_late=kind.late, **options)


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
