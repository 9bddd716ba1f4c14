"""A pool that runs nothing: the world begins and ends its runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import Terminated
from billiard.pool import RUN
from celery.concurrency.asynpool import AsynPool

__all__ = ["Job", "Pool", "einfo", "request_of"]

_PID = 4242
#: The pipe of its results: each is read at the time that the world chooses, so it never has an unread one.
_SILENT, _ = os.pipe()
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
    outcome: str = ""
    run: Any = None
    granted_us: int = 0
    permit: Any = None
    _job: int = 0
    _worker_pid: int = _PID

    @property
    def _accepted(self) -> bool:
        return self.accepted

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
    def __init__(self, cache: dict[int, Job]) -> None:
        """Nothing of the real one is there but its type, and its jobs by their numbers."""
        self._cache, self._state = cache, RUN
        self._pool = [SimpleNamespace(pid=_PID, exitcode=None, outqR_fd=_SILENT)]

    def __del__(self) -> None:
        """Nor is there anything to end."""


class Pool:
    """The part of a pool that the gate and Celery's requests use.

    Args:
        size: slots.
        has_event_loop: as prefork has: it forgets jobs that no child has when the broker is lost.
        worker: its owner.
        given: called with each job.
    """

    is_green = False
    active = True

    def __init__(self, size: int, worker: Any, given: Callable[[Job], None], *, has_event_loop: bool) -> None:
        self.num_processes, self._worker, self._given = size, worker, given
        self._cache: dict[int, Job] = {}
        self._pool: Any = _WithEventLoop(self._cache) if has_event_loop else None
        self._has_event_loop = self.uses_semaphore = has_event_loop
        self.jobs: list[Job] = []
        self._given_so_far = 0

    def apply_async(self, _target: Any, args: Any, **options: Any) -> Job:
        self._worker.outside()
        task, task_id, request, *_ = args
        callbacks = options["accept_callback"], options["callback"], options["error_callback"]
        job = Job(self._worker, task, task_id, request, *callbacks, _job=self._given_so_far)
        self._given_so_far += 1
        self._cache[job._job] = job
        self.jobs.append(job)
        self._given(job)
        return job

    def maintain_pool(self) -> None:
        """Ignored, because the world reports lost children."""

    def forget_unbegun(self) -> None:
        """Flush: forget the jobs that no child has begun. A body that has begun goes on."""
        if self._has_event_loop:
            self.jobs = [job for job in self.jobs if job.state != "sent"]
            self._cache.clear()
            self._cache.update((job._job, job) for job in self.jobs)
