"""Jobs that other code than the gate gives to Celery's pool: a `Strategy` that collects messages, a bootstep."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OtherJobs"]


class OtherJobs:
    """Counts the jobs of others in one pool.

    Args:
        pool: Celery's pool.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._ended: Callable[[], None] = _nothing
        self._giver: int | None = None  # the thread in which the gate gives a job
        self._jobs: dict[Callable[[], bool], int] = {}  # whether each has ended, and its number
        self._number = 0
        self._seen: int | None = None  # the number of the last job when the gate began to want a slot

    def watch(self, ended: Callable[[], None]) -> None:
        """Count all jobs from now on; call ``ended`` from any thread when one has ended.

        To be called before Celery makes its strategies, because its requests keep the pool's function.
        """
        self._ended = ended
        pool = self._pool
        pool.apply_async = partial(self._apply, pool.apply_async)

    def give(self, give: Callable[[], Any]) -> Any:
        """Return the result of a function that gives a job of the gate to the pool, which is not counted here."""
        self._giver, self._seen = get_ident(), None
        try:
            return give()
        finally:
            self._giver = None

    def _apply(self, apply: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self._giver == get_ident():
            return apply(*args, **options)
        if self._pool.uses_semaphore:  # processes: all other jobs report their end themselves
            for name in ("callback", "error_callback"):
                options[name] = partial(self._then, options.get(name))
        self._number = number = self._number + 1
        coming = partial(bool)  # has not ended; a full pool may have this caller wait
        self._jobs[coming] = number
        try:
            job = apply(*args, **options)
        finally:
            self._jobs.pop(coming, None)
        if (over := _over(job, self._ended)) is not None:
            self._jobs[over] = number
        return job

    def _then(self, callback: Callable[..., Any] | None, *args: Any, **options: Any) -> None:
        try:
            if callback is not None:
                callback(*args, **options)
        finally:
            self._ended()

    @property
    def count(self) -> int:
        """The number of jobs of others that have not ended."""
        if not self._jobs:
            return 0
        return len(self._left())

    @property
    def ahead(self) -> int:
        """The number of those that the gate waits for; jobs that came after it wanted a slot do not count.

        Else a task would wait for as long as others fill the pool.
        """
        if not self._jobs:
            return 0
        left = self._left()
        if self._seen is None or self._has_caller_wait:
            return len(left)
        return sum(number <= self._seen for number in left)

    @property
    def blocking(self) -> int:
        """The number of those behind which no run can wait in the pool."""
        return self.count if self._jobs and self._has_caller_wait else 0

    @property
    def _has_caller_wait(self) -> bool:
        """Whether a full pool has its caller wait: one of greenlets, or one of processes without an event loop."""
        return bool(self._pool.is_green or (self._pool.uses_semaphore and self._pool.putlocks))

    def wait(self) -> None:
        """Note that the gate wants a slot, until it gives its next job."""
        if self._seen is None:
            self._seen = self._number

    def wait_no_more(self) -> None:
        """Note that the gate wants no slot."""
        self._seen = None

    def _left(self) -> list[int]:
        jobs = list(self._jobs.items())
        for over, _ in jobs:
            if over():
                self._jobs.pop(over, None)
        return [number for over, number in jobs if over in self._jobs]


def _over(job: Any, ended: Callable[[], None]) -> Callable[[], bool] | None:
    """Return a function that returns whether a job has ended; None if the pool has run it already.

    ``ended`` is called when a thread or greenlet ends.
    """
    if isinstance(future := getattr(job, "f", None), Future):
        future.add_done_callback(lambda _: ended())
        return partial(Future.done, future)
    if hasattr(job, "link"):  # a greenlet
        job.link(lambda _: ended())
        return lambda: bool(job.dead)
    if hasattr(job, "_cache"):
        # The pool drops jobs without a report when its worker loses its broker connection.
        return lambda: job.ready() or job._job not in job._cache  # noqa: SLF001
    return None


def _nothing() -> None:
    """Wake no loop, before there is one."""
