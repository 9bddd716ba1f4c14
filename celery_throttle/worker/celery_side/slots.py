"""What the gate has to know of Celery's pool: how many tasks it runs at once, and when a child of it is gone."""

from __future__ import annotations

import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from celery import VERSION
from celery.concurrency.asynpool import AsynPool
from celery.platforms import EX_FAILURE
from celery.worker import state

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Slots"]

_OUTLAST_EVERY = 0.02


class Slots:
    """The slots of one pool.

    Args:
        pool: Celery's pool.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._offered = False

    @property
    def name(self) -> str:
        """What the pool is called, as after ``-P``."""
        name = type(self._pool).__module__.rpartition(".")[2]
        return "threads" if name == "thread" else name

    @property
    def in_main_process(self) -> bool:
        """Whether bodies run in the main process, and may keep all else in it from running: not only threads do."""
        return not self._pool.uses_semaphore  # only a pool of processes does

    @property
    def gone(self) -> bool:
        """Whether a cold shutdown has begun: it ends the pool in a signal handler, in the middle of the loop's turn."""
        flag: object = state.should_terminate
        return flag is not None and flag is not False  # 0 is a status to stop with

    def stopped(self, error: BaseException) -> bool:
        """Whether this error of `run` is a cold shutdown that has begun: the pool may have the task then."""
        if isinstance(error, NotImplementedError):
            # Before Celery 5.7 its signal handler raises this, that it cannot end threads, and then does not say that
            # the worker is to end.
            vars(state)["should_terminate"] = EX_FAILURE
        return self.gone

    @property
    def size(self) -> int:
        """How many tasks run at once; changes with autoscale and remote control."""
        if self.gone or not self._pool.active:  # once stopped, a pool of processes has no number of them
            return 0
        # Before Celery 5.7 a green pool counts what runs, not what could.
        size: int = self._pool._pool.size if self._pool.is_green else self._pool.num_processes  # noqa: SLF001
        return size

    def run(self, request: Any, died: Callable[[BaseException], None]) -> Any:
        """Give a request to the pool and return the pool's job.

        Args:
            request: Celery's request.
            died: called, from any thread, if the job ended by an error of what is around the task's body. A process
                tells the request of that as of any failure; a thread or a greenlet just ends.
        """
        job = request.execute_using_pool(self._pool)
        if isinstance(future := getattr(job, "f", None), Future):
            future.add_done_callback(lambda ended: _tell(died, ended))
        elif hasattr(job, "link_exception"):  # gevent's
            job.link_exception(lambda ended: died(ended.exception))
        return job

    def outlast(self) -> None:
        """Wait for the threads that still run tasks: a pool of them cannot end them.

        Celery waits for them, too, until a cold shutdown: then its signal handler raises that it cannot end them, and
        Python takes an interrupted join for the thread's end. The next signal gets us out of here the same way.
        """
        executor: Any = getattr(self._pool, "executor", None)
        if isinstance(executor, ThreadPoolExecutor):
            executor.shutdown(wait=False, cancel_futures=True)
            threads = {thread.ident for thread in executor._threads}  # noqa: SLF001
            while threads & sys._current_frames().keys():  # noqa: SLF001
                time.sleep(_OUTLAST_EVERY)

    @property
    def passed_on(self) -> bool:
        """Whether `pass_on` does anything for this pool."""
        return self._asyn_pool is not None and hasattr(self._asyn_pool, "on_poll_start")

    def pass_on(self, hub: Any) -> None:
        """Have the pool offer its new jobs to its children before the hub waits for events.

        The pool does that by itself once in each turn of the hub, after our turn or before it, as chance has it, and
        asks the kernel for something each time, whether there are jobs or not: so we take it over.
        """
        if (pool := self._asyn_pool) is None or (offer := getattr(pool, "on_poll_start", None)) is None:
            return
        hub.on_tick.discard(offer)
        offered, self._offered = self._offered, bool(pool.outbound_buffer)
        if offered or self._offered:
            offer()

    def keep_jobs(self) -> None:
        """Have the pool go on listening to its children when the broker connection is lost.

        Before Celery 5.6 its `flush` may forget every job, also those that a child runs. Nobody hears how those end
        then: here each would keep its slot and its permits until the worker stops.
        """
        if self._asyn_pool is None or (VERSION.major, VERSION.minor) >= (5, 6):
            return
        pool = self._pool
        flush, jobs = pool.flush, self._asyn_pool._cache  # noqa: SLF001

        def flush_the_rest() -> None:
            accepted = {number: job for number, job in jobs.items() if job._accepted}  # noqa: SLF001
            flush()
            jobs.update((number, job) for number, job in accepted.items() if not job.ready())

        pool.flush = flush_the_rest

    def discarded(self, request: Any) -> bool:
        """Whether the pool threw the request's job away when the consumer stopped, for good or to connect again.

        The pool with an event loop does that with every job that no child has accepted yet.
        """
        return request.time_start is None and self._asyn_pool is not None

    @staticmethod
    def was_sent(job: Any) -> bool:
        """Whether a child may have begun a discarded job."""
        return job is None or job._write_to is not None  # noqa: SLF001

    def tend(self) -> None:
        """Look for lost children.

        Celery looks once when a child's pipe breaks, often a moment before the child can be waited for, and then every
        five seconds. A permit should not wait that long.
        """
        if self._asyn_pool is not None:
            self._pool.maintain_pool()

    @property
    def _asyn_pool(self) -> Any:
        """The processes, where the hub serves them, else None."""
        pool = getattr(self._pool, "_pool", None)  # only there once it has started
        return pool if isinstance(pool, AsynPool) else None


def _tell(died: Callable[[BaseException], None], ended: Future[Any]) -> None:
    error = None if ended.cancelled() else ended.exception()
    if error is not None:
        died(error)
