"""Tasks of `early` that its workers import while they run."""

from __future__ import annotations

import os
from typing import Any

from celery_throttle import Limit, RateLimited, Throttled
from tests.support.apps import run_held, task_maker
from tests.support.apps.early import app, both

make_held = task_maker(app, run_held)


def past_the_gate(task: Any, app: Any, consumer: Any) -> Any:  # noqa: ARG001 - Celery's signature
    return lambda message, *_: task.Request(message).execute_using_pool(consumer.pool)


late_plain = make_held("late_plain")
limited = make_held("limited", base=Throttled, limit=Limit("late", int(os.environ.get("LATE", "1"))))
on_host = make_held("on_host", base=Throttled, limit=Limit("on_host", 1, per="host"))
paced = make_held("paced", base=Throttled, rate="1/h")
once = make_held("once", base=Throttled, singleton=True, unique_on=[])
shares = make_held("shares", base=Throttled, limit=both)
far = make_held("far", base=Throttled, limit=Limit("far", 1, group="far"))
passes = make_held("passes", base=Throttled, limit=1, Strategy=f"{__name__}:past_the_gate")


@app.task(base=Throttled, limit=1, shared=False, name="tests.support.apps.early.slows")
def slows(label: str) -> None:  # noqa: ARG001 - as the others
    raise RateLimited
