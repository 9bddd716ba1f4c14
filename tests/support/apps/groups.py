"""Tasks whose limits are in three groups, so in three places in Redis."""

from __future__ import annotations

from celery_throttle import Limit, Throttled
from tests.support.apps import new_app, run_held, task_maker

app = new_app("groups")
eu, us = Limit("eu", 2, group="eu"), Limit("us", 1, group="us")

make_held = task_maker(app, run_held)
in_eu = make_held("in_eu", base=Throttled, limit=eu)
in_us = make_held("in_us", base=Throttled, limit=us, singleton=True, unique_on=["label"], acks_late=True)
anywhere = make_held("anywhere", base=Throttled, limit=1)
