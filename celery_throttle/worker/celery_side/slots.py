"""Celery's pool for the gate: the number of tasks that run at once, and children that are gone."""

from __future__ import annotations

import select
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from billiard.pool import RUN as POOL_RUNS
from celery.concurrency.asynpool import AsynPool
from celery.platforms import EX_FAILURE
from celery.worker import state

from celery_throttle.worker.celery_side.flushing import flush_the_rest
from celery_throttle.worker.celery_side.other_jobs import OtherJobs
from celery_throttle.worker.celery_side.soft_shutdown import PoolResults

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.worker.runs import Run

__all__ = ["Slots"]

_OUTLAST_EVERY = 0.02


class Slots:
    """The slots of one pool.

    Args:
        pool: Celery's pool.

    Attributes:
        others: the jobs that other code gives to the pool.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.others = OtherJobs(pool)
        self._offered = False

    @property
    def name(self) -> str:
        """The pool's name, as after ``-P``."""
        name = type(self._pool).__module__.rpartition(".")[2]
        return "threads" if name == "thread" else name

    @property
    def in_main_process(self) -> bool:
        """Whether bodies run in the main process, and may keep all other code in it from running."""
        return not self._pool.uses_semaphore  # only a pool of processes uses one

    @property
    def gone(self) -> bool:
        """Whether a cold shutdown has begun, which ends the pool in a signal handler, amid a turn of the loop."""
        flag: object = state.should_terminate
        return flag is not None and flag is not False  # 0 is a status to stop with

    def stopped(self, error: BaseException) -> bool:
        """Return whether this error of `run` comes from a cold shutdown: the pool may have the task then."""
        if isinstance(error, NotImplementedError):
            # Before Celery 5.7 its signal handler raises this because it cannot end threads. It then does not set the
            # flag that ends the worker.
            vars(state)["should_terminate"] = EX_FAILURE
        return self.gone

    @property
    def size(self) -> int:
        """The number of tasks that run at once; changes with autoscale and remote control."""
        if self.gone or not self._pool.active:  # a stopped pool of processes has no size
            return 0
        # Before Celery 5.7 `num_processes` of a green pool counts running tasks, not slots.
        size: int = self._pool._pool.size if self._pool.is_green else self._pool.num_processes  # noqa: SLF001
        return size

    def run(self, request: Any, died: Callable[[BaseException], None]) -> Any:
        """Give a request to the pool and return the pool's job.

        Args:
            request: Celery's request.
            died: called, from any thread, if the job ended by an error outside of the task's body. A process reports
                such an error to the request, as any failure; a thread or a greenlet just ends.
        """
        job = self.others.give(partial(request.execute_using_pool, self._pool))
        if isinstance(future := getattr(job, "f", None), Future):
            future.add_done_callback(lambda ended: _report_death(died, ended))
        elif hasattr(job, "link_exception"):  # a greenlet of gevent
            job.link_exception(lambda ended: died(ended.exception))
        return job

    def outlast(self) -> None:
        """Wait for the threads that still run tasks, because a pool of threads cannot end them.

        Celery waits for these threads, too, until a cold shutdown. Then its signal handler raises an error, since it
        cannot end threads, and Python takes an interrupted join for the thread's end. The next signal ends this wait
        the same way.
        """
        executor: Any = getattr(self._pool, "executor", None)
        if isinstance(executor, ThreadPoolExecutor):
            executor.shutdown(wait=False, cancel_futures=True)
            threads = set(executor._threads)  # noqa: SLF001
            while _run_on(threads):
                time.sleep(_OUTLAST_EVERY)

    @property
    def passed_on(self) -> bool:
        """Whether `pass_on` has an effect for this pool."""
        return self._asyn_pool is not None and hasattr(self._asyn_pool, "on_poll_start")

    def pass_on(self, hub: Any) -> None:
        """Have the pool offer its new jobs to its children before the hub waits for events.

        The pool itself offers jobs once in each turn of the hub, at random before or after our turn. Each time it
        makes a system call, even without jobs. So we call it instead, when there are jobs.
        """
        if (pool := self._asyn_pool) is None or (offer := getattr(pool, "on_poll_start", None)) is None:
            return
        hub.on_tick.discard(offer)
        offered, self._offered = self._offered, bool(pool.outbound_buffer)
        if offered or self._offered:
            offer()

    def watch(self, ended: Callable[[], None]) -> None:
        """Count the jobs of others, and have the pool keep the jobs that its children have when it is flushed.

        Args:
            ended: called, from any thread, when a job of others has ended.
        """
        pool = self._pool
        self.others.watch(ended)
        if self._asyn_pool is not None:
            pool.flush = partial(flush_the_rest, self._asyn_pool)

    def results(self, hub: Any) -> PoolResults:
        """Return the results of the processes that this hub, the worker's, reads."""
        return PoolResults(self._asyn_pool, hub)

    @property
    def is_green(self) -> bool:
        """Whether bodies are greenlets, which run while all other code waits."""
        return bool(self._pool.is_green)

    def discarded(self, run: Run) -> bool:
        """Return whether the pool dropped the run's job, unbegun, when the consumer stopped, for good or not."""
        if self._asyn_pool is None or run.request.time_start is not None:
            return False
        return run.job is None or run.job._job not in self._asyn_pool._cache  # noqa: SLF001

    def has_lost(self, run: Run) -> bool:
        """Return whether a child died with the run's job, unbegun, and the closed pool has no other child for it."""
        pool, job = self._asyn_pool, run.job
        if pool is None or pool._state == POOL_RUNS or job is None:  # noqa: SLF001
            return False
        return not job._accepted and job._write_to is not None and job._write_to not in pool._pool  # noqa: SLF001

    def has_unread_end(self, run: Run) -> bool:
        """Return whether a child reports the end of the run's body, or has died, and the pool has not read that yet.

        From any thread. A child reports that a job begins, and then only its end: what comes next is the end.
        """
        pool, job = self._asyn_pool, run.job
        if pool is None or job is None or not job._accepted:  # noqa: SLF001
            return False
        child = next((each for each in list(pool._pool) if each.pid == job._worker_pid), None)  # noqa: SLF001
        return child is None or child.exitcode is not None or _is_readable(child.outqR_fd)

    def tend(self) -> None:
        """Look for lost children.

        Celery looks once when a child's pipe breaks, often a moment before the child can be waited for, and then every
        five seconds. A permit should not wait that long.
        """
        if self._asyn_pool is not None:
            self._pool.maintain_pool()

    @property
    def _asyn_pool(self) -> Any:
        """The pool of processes that the hub serves, None for other pools."""
        pool = getattr(self._pool, "_pool", None)  # missing before the pool has started
        return pool if isinstance(pool, AsynPool) else None


def _run_on(threads: set[threading.Thread]) -> bool:
    """Return whether one of these threads still runs, also after a join of it was interrupted."""
    # A thread that has ended may have left its ident to a new one.
    others = {each.ident for each in threading.enumerate() if each not in threads}
    return bool(({each.ident for each in threads} - others) & sys._current_frames().keys())  # noqa: SLF001


def _is_readable(fd: int) -> bool:
    found = select.poll()
    found.register(fd, select.POLLIN)
    return any(event & select.POLLIN for _, event in found.poll(0))


def _report_death(died: Callable[[BaseException], None], ended: Future[Any]) -> None:
    error = None if ended.cancelled() else ended.exception()
    if error is not None:
        died(error)
