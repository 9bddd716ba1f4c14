"""Tasks whose limits are in three groups, so in three places in Redis."""

from __future__ import annotations

from typing import Any

from celery_throttle import Limit, Throttled
from tests.support.apps import new_app, run_held

app = new_app("groups")

eu, us = Limit("eu", 2, group="eu"), Limit("us", 1, group="us")


@app.task(shared=False, bind=True, base=Throttled, limit=eu)
def in_eu(self: Any, label: str) -> str:
    return run_held(self, label)


@app.task(shared=False, bind=True, base=Throttled, limit=us, singleton=True, unique_on=["label"], acks_late=True)
def in_us(self: Any, label: str) -> str:
    return run_held(self, label)


@app.task(shared=False, bind=True, base=Throttled, limit=1)
def anywhere(self: Any, label: str) -> str:
    return run_held(self, label)
