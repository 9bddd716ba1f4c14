"""An app whose workers learn of further tasks while they run: those of `late` and `late_conflict`."""

from __future__ import annotations

import importlib
import os

from celery_throttle import Limit, Throttled
from tests.support.apps import new_app, run_held, task_maker

app = new_app("early", worker_pool_restarts=True)
both = Limit("both", 1)
make_held = task_maker(app, run_held)
plain = make_held("plain")
if os.environ.get("EARLY") != "plain":
    early = make_held("early", base=Throttled, limit=both)


@app.task(shared=False)
def imports(module: str) -> None:
    """In a pool of threads, have the worker import a module."""
    importlib.import_module(module)
