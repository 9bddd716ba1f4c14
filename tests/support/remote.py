"""Celery's remote control, as a test uses it: asks certain workers, and waits as long as those take."""

from __future__ import annotations

import socket
import uuid
from typing import Any

from tests.support.waiting import until
from tests.support.workers import Worker

__all__ = ["name_of", "steer", "tell", "throttle_in", "wait_heard"]

#: The answer of a worker that no longer waits: on a busy machine it has to be asked again.
TOO_SLOW = ("the store did not answer within", "the store has not answered the last", "the gate of this worker is busy")


def name_of(worker: Worker) -> str:
    """Return Celery's name of a worker."""
    return f"{worker.name}@{socket.gethostname()}"


def wait_heard(app: Any, *workers: Worker) -> None:
    """Wait until they receive commands: they report to be ready a moment before, and early commands are lost."""
    names = [name_of(worker) for worker in workers]
    until(lambda: len(app.control.ping(destination=names, timeout=1)) == len(names))


def tell(app: Any, command: str, *workers: Worker, **arguments: Any) -> list[Any]:
    """Have these workers carry out a command, once; return the answer of each."""
    wait_heard(app, *workers)
    names = [name_of(worker) for worker in workers]
    replies = app.control.broadcast(command, arguments=arguments, destination=names, reply=True, timeout=20)
    answers = {name: answer for reply in replies for name, answer in reply.items()}
    return [answers[name] for name in names]


def steer(app: Any, command: str, *workers: Worker, **arguments: Any) -> list[Any]:
    """Have these workers carry out one change: repeat the command until each has answered; return their answers."""
    arguments = {"request": uuid.uuid4().hex} | arguments

    def answered() -> list[Any]:
        answers = tell(app, command, *workers, **arguments)
        return [] if any(str(each.get("error", "")).startswith(TOO_SLOW) for each in answers) else answers

    return until(answered)


def throttle_in(app: Any, worker: Worker) -> Any:
    """Return the answer of a worker to ``celery inspect throttle``."""
    (answer,) = steer(app, "throttle", worker)
    return answer
