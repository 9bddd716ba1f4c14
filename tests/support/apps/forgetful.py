"""An app whose author has forgotten ``base=Throttled``, or the options beside it."""

from __future__ import annotations

import os

from celery import Celery

from celery_throttle import Limit, Throttled

app = Celery("forgetful", broker=os.environ.get("BROKER_URL"), backend=os.environ.get("RESULT_BACKEND"))
gpu = Limit("gpu", 1)


@app.task(shared=False, limit=gpu)
def render() -> None: ...


@app.task(shared=False, base=Throttled)
def bare() -> None: ...
