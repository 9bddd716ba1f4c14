"""Tasks with strategies of their own, of which one gives its jobs to the pool itself, as celery-batches does.

``REFUSED`` in the environment gives that task an option of ours, as Python: ``{"limit": 1}``.
"""

from __future__ import annotations

import ast
import os
from types import SimpleNamespace
from typing import Any

from celery import Task

from celery_throttle import Limit, Throttled
from tests.support.apps import new_app, run_held, task_maker
from tests.support.journal import Journal

app = new_app("strategies")


def hold_batch(label: str, task_id: str, name: str, hostname: str) -> None:
    """Run one job; in a process of the pool."""
    request = SimpleNamespace(id=task_id, task=name, hostname=hostname, retries=0, delivery_info={})
    run_held(SimpleNamespace(request=request), label)


class Batches(Task):  # type: ignore[type-arg]
    """Its messages never come by the gate."""

    abstract = True

    def Strategy(self, task: Any, app: Any, consumer: Any) -> Any:  # type: ignore[override] # noqa: ARG002, N802
        Journal.note("strategy", task=task.name)

        def handler(message: Any, body: Any, ack: Any, *_: Any, **__: Any) -> None:  # noqa: ARG001
            (label,), _, _ = message.decode()
            self.flush(consumer, label, message.headers["id"], task.name, ack)

        return handler

    def flush(self, consumer: Any, label: str, task_id: str, name: str, ack: Any) -> None:
        consumer.pool.apply_async(
            hold_batch, (label, task_id, name, consumer.hostname), accept_callback=lambda *_: ack(None, ())
        )


class ThrottledBatches(Throttled, Batches):
    """Both."""

    abstract = True


make = task_maker(app, run_held)

batch = make("batch", base=Batches)
both = make("both", base=ThrottledBatches, **ast.literal_eval(os.environ.get("REFUSED", "{}")))

SINGLE = Limit("single", 1)
single = make("single", base=Throttled, limit=SINGLE)
pair = make("pair", base=Throttled, limit=2)
plain = make("plain")
