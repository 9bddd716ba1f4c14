"""Tasks for events between two parts: two limits, two queues, two releases, a run and its retry.

Runs that hold go on until the test lets them go. ``OLDER_RELEASE`` in the environment makes the app
that of a release which does not have ``charge`` yet; ``LOOK_EVERY`` as in `doors`.
"""

from __future__ import annotations

import os
from typing import Any

from celery.signals import task_postrun
from kombu import Exchange, Queue

from celery_throttle import Limit, Throttled
from tests.support.apps import new_app, run_for, run_held, task_maker
from tests.support.looks import look_every

look_every()

app = new_app(
    "seams",
    task_queues=[
        Queue("celery"),
        Queue("alpha"),
        Queue("media", Exchange("media", type="topic"), routing_key="media.#"),
    ],
)

make_held = task_maker(app, run_held)

# Not throttled.
plain = make_held("plain")
one = make_held("one", base=Throttled, limit=1)
pair = make_held("pair", base=Throttled, limit=2)
six = make_held("six", base=Throttled, limit=6)


def _expensive(task: Any, label: str) -> str:
    return run_for(task, label, 0.5)


frame = task_maker(app, _expensive)("frame", base=Throttled, limit=6)
crowded = make_held("crowded", base=Throttled, limit=1, max_parked=2)
# Is delivered again when it has taken too long.
late = make_held("late", acks_late=True, acks_on_failure_or_timeout=False, time_limit=1)
# The same, and throttled.
late_one = make_held(
    "late_one", base=Throttled, limit=1, acks_late=True, acks_on_failure_or_timeout=False, time_limit=1
)

# Its process is lost when its success is stored.
lost_afterwards = make_held("lost_afterwards", base=Throttled, limit=1, acks_late=True)


@task_postrun.connect(sender=lost_afterwards)
def _lose(**_: Any) -> None:
    os._exit(3)


till = Limit("till", 1)
make_timed = task_maker(app, run_for)
receipt = make_timed("receipt", base=Throttled, limit=till)
if "OLDER_RELEASE" not in os.environ:
    charge = make_timed("charge", base=Throttled, limit=till, singleton=True, remember=600)
