"""The apps that workers of tests run, and what their tasks have in common."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from celery import Celery

from tests.support.journal import Journal

__all__ = ["new_app", "run_for", "run_held", "task_maker"]


def new_app(name: str, *, task_cls: Any = None, **conf: Any) -> Celery:
    """Return an app on the broker, backend and settings of the environment, which `Workers` makes.

    Its tasks need ``shared=False``: each import of its module is an app of its own, in the same process too.
    """
    app = Celery(name, broker=os.environ.get("BROKER_URL"), backend=os.environ.get("RESULT_BACKEND"), task_cls=task_cls)
    app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=True, **conf)
    app.conf.update(json.loads(os.environ.get("TEST_CONF", "{}")))
    return app


def run_for(task: Any, label: str, seconds: float = 0.0) -> str:
    """Note a run that takes so long."""
    with Journal.from_environment().run(task.request, label):
        time.sleep(seconds)
    return label


def run_held(task: Any, label: str, name: str = "") -> str:
    """Note a run that goes on until the test lets go its name, by default its label (`Journal.let_go`)."""
    journal = Journal.from_environment()
    with journal.run(task.request, label):
        journal.wait_let_go(name or label)
    return label


def task_maker(app: Any, body: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes tasks with this body, which gets the task first, by their names and options."""

    def make(name: str, **options: Any) -> Any:
        return app.task(body, shared=False, bind=True, name=f"{__name__}.{app.main}.{name}", **options)

    return make
