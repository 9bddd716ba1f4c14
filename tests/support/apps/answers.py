"""Singletons that can do with a result backend that answers the caller alone: ``rpc://``."""

from __future__ import annotations

from celery_throttle import Throttled
from tests.support.apps import new_app, run_held, task_maker

app = new_app("answers")
make_held = task_maker(app, run_held)

skip = make_held("skip", base=Throttled, singleton=True, on_conflict="skip")
raises = make_held("raises", base=Throttled, singleton=True, on_conflict="raise")
last = make_held("last", base=Throttled, singleton=True, unique_on=[], on_conflict="keep_last")
ignored = make_held("ignored", base=Throttled, singleton=True, ignore_result=True)
