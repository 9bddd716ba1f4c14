"""Runs of tasks without a worker around them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from celery_throttle.core.policy import Needs
from celery_throttle.worker.runs import Content, Run

__all__ = ["GPU", "request_of", "run_of"]

GPU = Needs(("gpu",), "1:gpu")


def request_of(task: str = "t", /, *, acknowledged: bool = False, **attributes: Any) -> Any:
    """Return the part of a request of Celery that a run needs, of a class with these attributes beside it."""
    message = SimpleNamespace(acknowledged=acknowledged)

    def acknowledge(_: object) -> None:
        message.acknowledged = True

    request = type("Request", (), {"acknowledge": acknowledge, **attributes})()
    vars(request).update(id=task, name=task, message=message)
    return request


def run_of(task: str, *, acknowledged: bool = True, epoch: int = 1, group: str = "", keeps: bool = False) -> Run:
    request = request_of(task, acknowledged=acknowledged, request_dict={})
    run = Run(request, Content(task, needs=GPU), epoch=epoch, queue="celery", group=group, nonce=f"w:{task}")
    run.keeps = keeps
    return run
