"""Tasks whose limits have permits on each host, on each worker, or on each value of a tag."""

from __future__ import annotations

from typing import Any

from celery_throttle import Limit, Throttled
from tests.support.apps import new_app
from tests.support.journal import Journal

app = new_app("sites")

GPU = Limit("gpu", 2, per="host")
BOX = Limit("box", 1, per="gpu_box")
THUMBS = Limit("thumbs", share=0.5, per="worker")


def _hold(task: Any, label: str) -> str:
    journal = Journal.from_environment()
    with journal.run(task.request, label):
        journal.wait_let_go(label)
    return label


@app.task(bind=True, shared=False, base=Throttled, limit=GPU)
def train(self: Any, label: str) -> str:
    return _hold(self, label)


@app.task(bind=True, shared=False, base=Throttled, limit=GPU, acks_late=True)
def again(self: Any, label: str) -> str:
    """Runs again when its worker is lost."""
    return _hold(self, label)


@app.task(bind=True, shared=False, base=Throttled, limit=BOX)
def boxed(self: Any, label: str) -> str:
    return _hold(self, label)


@app.task(bind=True, shared=False, base=Throttled, limit=THUMBS)
def thumb(self: Any, label: str) -> str:
    return _hold(self, label)
