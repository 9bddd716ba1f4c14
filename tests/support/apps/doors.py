"""Tasks that run until the test lets them go: the test decides when they end, not the clock.

Each run notes which other runs of its limit still have a living process when it begins (event "beside"). So a cap can
be checked where the processes that the test kills cannot note their end.

``LOOK_EVERY`` in the environment replaces the seconds between a worker's own looks: with an hour, only hints wake it.
``SIGN`` is the path of a file that keeps new processes of the pool from getting ready, while it is there.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery.signals import worker_process_init

from celery_throttle import Limit, Throttled
from tests.support.apps import new_app, task_maker
from tests.support.journal import Journal
from tests.support.looks import look_every
from tests.support.workers import alive

look_every()

app = new_app(
    "doors",
    task_routes={
        "tests.support.apps.doors.left": {"queue": "left"},
        "tests.support.apps.doors.right": {"queue": "right"},
    },
)


@worker_process_init.connect
def _enter(**_: Any) -> None:
    while Path(os.environ.get("SIGN", "no sign")).exists():
        time.sleep(0.01)


def _beside(journal: Journal, request: Any, limit: str) -> list[str]:
    others = [run for run in journal.running() if (run.task_id, run.pid) != (request.id, os.getpid())]
    return [run.label for run in others if _limit(run.task) == limit and alive(run.pid)]


def _limit(task: str) -> str:
    limit = getattr(app.tasks[task], "limit", None)
    return limit.name if isinstance(limit, Limit) else task


def _hold(task: Any, label: str, how: str = "return") -> str:
    journal = Journal.from_environment()
    with journal.run(task.request, label):
        beside = _beside(journal, task.request, _limit(task.request.task))
        journal.write("beside", limit=_limit(task.request.task), label=label, others=beside)
        journal.wait_let_go(label)
        if how == "exit":
            journal.killed([os.getpid()])
            os._exit(3)
        if how == "SystemExit":
            raise SystemExit(3)
    return label


make_held = task_maker(app, _hold)

# Not throttled.
plain = make_held("plain")

hold = make_held("hold", base=Throttled, limit=1)
hold_late = make_held("hold_late", base=Throttled, limit=1, acks_late=True)
# Late acknowledgement, and run again when the child that ran it is lost.
hold_again = make_held("hold_again", base=Throttled, limit=1, acks_late=True, reject_on_worker_lost=True)
# As `hold_again`, with a permit of its own.
twice = make_held("twice", base=Throttled, limit=1, acks_late=True, reject_on_worker_lost=True)
pair = make_held("pair", base=Throttled, limit=2)

SHARED = Limit("shared", 1)
# Goes to the queue ``left``.
left = make_held("left", base=Throttled, limit=SHARED)
# Goes to the queue ``right``.
right = make_held("right", base=Throttled, limit=SHARED)


@app.task(shared=False)
def collect(labels: list[str]) -> list[str]:
    """The end of a chord."""
    return sorted(labels)
