"""Singletons that can do with a result backend that answers the caller alone: ``rpc://``."""

from __future__ import annotations

from typing import Any

from celery_throttle import Throttled
from tests.support.apps import new_app, run_held

app = new_app("answers")


@app.task(shared=False, bind=True, base=Throttled, singleton=True, on_conflict="skip")
def skip(self: Any, label: str) -> str:
    return run_held(self, label)


@app.task(shared=False, bind=True, base=Throttled, singleton=True, on_conflict="raise")
def raises(self: Any, label: str) -> str:
    return run_held(self, label)


@app.task(shared=False, bind=True, base=Throttled, singleton=True, unique_on=[], on_conflict="keep_last")
def last(self: Any, label: str) -> str:
    return run_held(self, label)


@app.task(shared=False, bind=True, base=Throttled, singleton=True, ignore_result=True)
def ignored(self: Any, label: str) -> str:
    return run_held(self, label)
