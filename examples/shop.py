"""A shop whose page is on the pictures of the docs: limits that are paused, held back, overridden, or only busy."""

from __future__ import annotations

import math
import os
import random
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from celery import Celery

from celery_throttle import Limit, RateLimited, ThrottleControl, Throttled
from celery_throttle.web import asgi

if TYPE_CHECKING:
    from threading import Event

app: Any = Celery("shop", broker=os.environ.get("THROTTLE_URL", "redis://localhost:6379/0"))
app.conf.update(task_ignore_result=True, throttle_environment="production", worker_pool="threads")
page = asgi(app, lambda _: "change", command="celery -A shop")


class Work(NamedTuple):
    """The calls of a task: how many a second, and how long each takes."""

    limit: Limit
    calls: float
    seconds: float


WORK = {
    "search": Work(Limit("search", 5), 0.6, 0.6),
    "load": Work(Limit("import", 3), 0.3, 1.0),
    "pay": Work(Limit("payments-api", 8), 2.5, 1.4),
    "train": Work(Limit("gpu", 4), 0.7, 5.0),
    "sync": Work(Limit("crm", 2, key="tenant"), 1.5, 1.3),
    "mail": Work(Limit("mail", rate="100/m", burst=10), 0.8, 0.05),
}
TENANTS = ("acme", "initech", "umbrella")
#: Seconds for which the limits are changed before the pictures are taken.
CHANGED = 90.0
#: Seconds from one busy time of a task to its next.
TIDE = 1200.0


def _task(name: str, work: Work) -> Any:
    def run(tenant: str, *, too_often: bool = False) -> None:  # noqa: ARG001 - the key of one limit
        if too_often:
            raise RateLimited(420)
        time.sleep(work.seconds * random.uniform(0.4, 1.6))

    return app.task(run, base=Throttled, limit=work.limit, name=f"shop.{name}", shared=False)


TASKS = {name: _task(name, work) for name, work in WORK.items()}


def play(minutes: float, over: Event) -> None:
    """Call the tasks until it is over, and change limits before so many minutes have passed."""
    begun, changed, control = time.monotonic(), False, ThrottleControl(app)
    while not over.wait(1):
        passed = time.monotonic() - begun
        if passed > minutes * 60 - CHANGED and not changed:
            changed = True
            control.limit("import").pause(by="ana", why="database migration", until=timedelta(minutes=90))
            control.limit("payments-api").override(5, by="bob", why="their incident 42", until=timedelta(hours=2))
            TASKS["search"].delay("acme", too_often=True)
        for number, (name, task) in enumerate(TASKS.items()):
            tide = 1 + 0.6 * math.sin(2 * math.pi * (passed / TIDE + number / len(TASKS)))
            calls = WORK[name].calls * tide * random.uniform(0, 2) * (2 if name == "pay" and changed else 1)
            for _ in range(int(calls) + (random.random() < calls % 1)):
                task.delay(random.choice(TENANTS))
