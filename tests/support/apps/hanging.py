"""Tasks of a worker that hangs: while the file ``SIGN`` is there, when it stops, or when a message comes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import bootsteps
from celery.signals import task_received
from celery.utils.log import get_logger

from celery_throttle import Limit, Throttled
from tests.support.apps import new_app, run_held, task_maker

app = new_app("hanging")

logger = get_logger(__name__)


def _hang() -> None:
    sign = Path(os.environ.get("SIGN", "no sign"))
    if sign.exists():
        logger.warning("hangs")
    while sign.exists():
        time.sleep(0.01)


class Hangs(bootsteps.StartStopStep):
    """Stops before the pool does, which would read what its processes report."""

    requires = ("celery.worker.components:Pool",)

    def stop(self, worker: Any) -> None:  # noqa: ARG002 - Celery's signature
        _hang()


app.steps["worker"].add(Hangs)


@task_received.connect
def _hang_amid_work(request: Any, **_: Any) -> None:
    if request.name == hang.name:
        _hang()


make = task_maker(app, run_held)
pair = make("pair", base=Throttled, limit=Limit("pair", 2))
late = make("late", base=Throttled, limit=Limit("late", 2), acks_late=True)
hang = make("hang")
