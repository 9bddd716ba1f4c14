"""Tasks with hooks and a request class of their own: each notes that it was used."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from celery.concurrency.thread import TaskPool as ThreadPool
from celery.signals import task_failure, task_received
from celery.worker.request import Request

from celery_throttle import Limit, Throttled
from tests.support.apps import new_app, task_maker
from tests.support.journal import Journal

app = new_app("custom")

single = Limit("single", 1)


@task_failure.connect
def _failed(task_id: str, **_: Any) -> None:
    Journal.note("task_failure", task_id=task_id)


@task_received.connect
def _quit(request: Any, **_: Any) -> None:
    """Begin a cold shutdown right before the request is handed over, as often as it is asked for."""
    if request.argsrepr.startswith("('quit") and not request.delivery_info.get("redelivered"):
        os.kill(os.getpid(), signal.SIGQUIT)


_apply = ThreadPool.on_apply


def _apply_and_quit(pool: Any, target: Any, args: Any = None, kwargs: Any = None, **how: Any) -> Any:
    """Begin a cold shutdown right after a thread has begun a task, as often as it is asked for."""
    job = _apply(pool, target, args, kwargs, **how)
    if args[2]["argsrepr"].startswith("('handed"):
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGQUIT)
    return job


ThreadPool.on_apply = _apply_and_quit  # type: ignore[assignment, method-assign]


class OwnRequest(Request):
    """Notes the calls of the pool."""

    def on_accepted(self, pid: Any, time_accepted: Any) -> Any:
        Journal.note("accepted by OwnRequest", task_id=self.id)
        return super().on_accepted(pid, time_accepted)

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        Journal.note(f"timeout of OwnRequest: {'soft' if soft else 'hard'} {timeout}", task_id=self.id)
        return super().on_timeout(soft, timeout)


class Hooks(Throttled):
    """Notes how it ends."""

    abstract = True

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:  # noqa: ARG002
        Journal.note("on_failure", task_id=task_id)

    def after_return(self, status: Any, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:  # noqa: ARG002
        Journal.note("after_return", task_id=task_id)


def _hold(task: Any, label: str, seconds: float = 60.0) -> str:
    journal = Journal.from_environment()
    with journal.run(task.request, label):
        journal.wait_let_go(label, seconds)
    return label


make = task_maker(app, _hold)
# Not throttled.
plain = make("plain")
hooked = make("hooked", base=Hooks, limit=single)
requested = make("requested", base=Hooks, limit=single, Request=f"{__name__}:OwnRequest")
