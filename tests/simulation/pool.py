"""A pool that runs nothing: the world begins and ends its runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import Terminated
from celery.concurrency.asynpool import AsynPool

__all__ = ["Job", "Pool", "einfo", "request_of"]

_PID = 4242
_TERMINATED = Terminated(15)


@cache
def einfo(error: BaseException) -> Any:
    """Return a child's report of an error."""
    try:
        raise error
    except type(error):
        return ExceptionInfo()


@dataclass(eq=False)
class Job:
    """One task given to the pool.

    Attributes:
        state: "sent", "begun" (its body runs), "ended" (which the worker has not seen) or "heard".
        accepted: whether the worker has seen that it began.
        granted_us: when its permit was granted.
        permit: the one that it runs with, None if it needs nothing.
        discarded: whether the pool forgot it, because the broker connection was lost.
    """

    worker: Any
    task: str
    task_id: str
    request: dict[str, Any]
    on_accepted: Callable[..., None]
    on_success: Callable[..., None]
    on_failure: Callable[..., None]
    state: str = "sent"
    accepted: bool = False
    discarded: bool = False
    outcome: str = ""
    run: Any = None
    granted_us: int = 0
    permit: Any = None
    _write_to: Any = None

    def cancel(self) -> None:
        """The worker gives it up in a cold shutdown."""
        self.on_failure(einfo(_TERMINATED))

    def accept(self) -> None:
        """Report its start to the worker."""
        self.accepted = True
        self.on_accepted(_PID, 0.0)


def request_of(job: Job) -> Any:
    """Return Celery's request of a job."""
    return job.on_accepted.__self__  # type: ignore[attr-defined]


class _WithEventLoop(AsynPool):
    def __init__(self) -> None:
        """Nothing of the real one is there but its type."""

    def __del__(self) -> None:
        """Nor is there anything to end."""


class Pool:
    """The part of a pool that the gate and Celery's requests use.

    Args:
        size: slots.
        has_event_loop: as prefork has: it forgets jobs that no child has accepted when the broker is lost.
        worker: its owner.
        given: called with each job.
    """

    is_green = False
    active = True

    def __init__(self, size: int, worker: Any, given: Callable[[Job], None], *, has_event_loop: bool) -> None:
        self.num_processes, self._worker, self._given = size, worker, given
        self._pool: Any = _WithEventLoop() if has_event_loop else None
        self._has_event_loop = self.uses_semaphore = has_event_loop
        self.jobs: list[Job] = []

    def apply_async(self, _target: Any, args: Any, **options: Any) -> Job:
        self._worker.outside()
        task, task_id, request, *_ = args
        callbacks = options["accept_callback"], options["callback"], options["error_callback"]
        job = Job(self._worker, task, task_id, request, *callbacks)
        self.jobs.append(job)
        self._given(job)
        return job

    def maintain_pool(self) -> None:
        """Ignored, because the world reports lost children."""

    def flush(self) -> list[Job]:
        """Forget the jobs that no child has accepted; a body that has begun goes on. Return those."""
        if not self._has_event_loop:
            return []
        gone = [job for job in self.jobs if not job.accepted and job.state != "heard"]
        for job in gone:
            job.discarded = True
            job._write_to = self if job.state != "sent" else None
            if job.state == "sent":
                self.jobs.remove(job)
        return gone
