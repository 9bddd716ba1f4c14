"""The app of a worker process: that of the tests, from a file beside the tests."""

from __future__ import annotations

import importlib
import inspect
import json
from typing import Any

from celery.contrib.testing.app import TestApp

from tests.celery_suite.every_task import CONFIGURATION, check_all_throttled, throttle_every_task

__all__ = ["app"]

throttle_every_task()
configuration = json.loads(CONFIGURATION.read_text())
app: Any = TestApp(name="celery.tests", config=configuration, enable_logging=True, set_as_current=True)
app.set_default()
tasks = importlib.import_module("t.integration.tasks")
for each in vars(tasks).values():
    if inspect.isclass(each) and issubclass(each, app.Task.__mro__[1]) and vars(each).get("name"):
        app.register_task(each())
app.finalize()
check_all_throttled(app)
