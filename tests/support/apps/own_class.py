"""An app with a task class of its own."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from celery import Task

from celery_throttle import Throttled
from tests.support.apps import new_app, run_for
from tests.support.journal import Journal

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


class Tenanted(Task):  # type: ignore[type-arg]
    """Carries the tenant of the publisher to the run, and notes the runs that succeed."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tenant.set(self.request.get("tenant") or "nobody")
        return super().__call__(*args, **kwargs)

    def apply_async(self, *args: Any, **options: Any) -> Any:
        headers = {**(options.pop("headers", None) or {}), "tenant": "acme"}
        return super().apply_async(*args, **options, headers=headers)

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        Journal.from_environment().write("on_success", task_id=task_id)


app = new_app("own_class", task_cls=Tenanted)


@app.task(shared=False, bind=True, base=Throttled, limit=2)
def work(self: Any, label: str) -> str:
    run_for(self, label, 0.2)
    return tenant.get()


@app.task(shared=False, bind=True, base=Throttled, singleton=True, limit=2, key="label")
def once(self: Any, label: str) -> str:
    run_for(self, label)
    return tenant.get()
