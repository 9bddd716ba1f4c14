"""Celery's remote control, as a test uses it: asks certain workers, and waits as long as those take."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.workers import Worker

__all__ = ["name_of", "tell", "throttle_in"]


def name_of(worker: Worker) -> str:
    """What Celery calls a worker."""
    return f"{worker.name}@{socket.gethostname()}"


def tell(app: Any, command: str, *workers: Worker, **arguments: Any) -> list[Any]:
    """Have these workers carry out a command; return what each answered."""
    names = [name_of(worker) for worker in workers]
    replies = app.control.broadcast(command, arguments=arguments, destination=names, reply=True, timeout=20)
    answers = {name: answer for reply in replies for name, answer in reply.items()}
    return [answers[name] for name in names]


def throttle_in(app: Any, worker: Worker) -> Any:
    """What ``celery inspect throttle`` says of a worker."""
    (answer,) = tell(app, "throttle", worker)
    return answer
