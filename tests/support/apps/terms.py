"""Tasks with a limit by key, several limits, and rates. A run is counted by its label, which is its key.

``LOOK_EVERY`` in the environment replaces the seconds between a worker's own looks.
"""

from __future__ import annotations

from typing import Any

from celery_throttle import Limit, Throttled
from tests.support.apps import new_app, run_for, run_held, task_maker
from tests.support.looks import look_every

look_every()

app = new_app("terms")

_several = [Limit("api", 8), Limit("tenant", 2, key="tenant_id")]


@app.task(shared=False, bind=True, base=Throttled, limit=1, key="customer_id")
def by_name(self: Any, customer_id: str) -> str:
    return run_held(self, customer_id, "go")


@app.task(shared=False, bind=True, base=Throttled, limit=_several)
def both(self: Any, tenant_id: str, seconds: float = 0.0) -> str:
    return run_for(self, tenant_id, seconds)


make_timed = task_maker(app, run_for)
paced = make_timed("paced", base=Throttled, rate="50/s", burst=3)


@app.task(shared=False, bind=True, base=Throttled, limit=2, rate="50/s")
def paced_two(self: Any, label: str) -> str:
    return run_for(self, label, 0.01)
