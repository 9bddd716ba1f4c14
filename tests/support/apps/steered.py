"""Tasks of limits that are steered at run time, in workers that look for work on their own only once an hour."""

from __future__ import annotations

from typing import Any

from celery_throttle import Limit, Throttled
from tests.support.apps import new_app, run_for, run_held, task_maker
from tests.support.looks import look_every

# Each start follows a hint, or comes at the time that the store gave.
look_every(3600)

app = new_app("steered", throttle_lease=7200)

api = Limit("api", 1)
pair = Limit("pair", 2)
tenant = Limit("tenant", 1, key="tenant_id")


make_held = task_maker(app, run_held)

call = make_held("call", base=Throttled, limit=api)
work = make_held("work", base=Throttled, limit=pair)


@app.task(shared=False, bind=True, base=Throttled, limit=tenant)
def serve(self: Any, label: str, tenant_id: str) -> str:  # noqa: ARG001 - the key
    return run_held(self, label)


@app.task(shared=False, bind=True, base=Throttled, limit=[api, tenant])
def both(self: Any, label: str, tenant_id: str) -> str:  # noqa: ARG001 - the key
    return run_held(self, label)


plain = task_maker(app, run_for)("plain")
