"""Flush Celery's pool of processes, and keep the jobs that its children have."""

from __future__ import annotations

from typing import Any

from billiard.pool import TERMINATE

__all__ = ["flush_the_rest"]


def flush_the_rest(pool: Any) -> None:
    """Flush the pool when the worker stops or loses its broker connection, but keep the jobs that its children have.

    Celery's own `flush` drops each job of which it has not read that a child began it (since 5.6.3; before 5.6 it may
    drop every job). The child has the job and runs it, but neither its begin nor its end is reported. So the message is
    not acknowledged, the task runs again, and the child waits 30 s for its report to be read before it ends.

    Args:
        pool: Celery's `AsynPool`.
    """
    jobs = pool._cache  # noqa: SLF001
    if pool._state == TERMINATE:  # noqa: SLF001
        return
    # A job of a lost child is put back, and may have the next child noted that got the same pipe.
    sent = [job for job in jobs.values() if job._write_to is not None and job not in pool.outbound_buffer]  # noqa: SLF001
    for job in sent:
        _write_on(pool, job)
        job._accepted = True  # noqa: SLF001 - so that `flush` keeps the job, and takes its child for busy
    try:
        pool.flush()
    finally:
        jobs.clear()
        for job in sent:
            job._accepted = job._worker_pid is not None  # noqa: SLF001 - which a report of the child sets
            # A child that is not in the pool any more has ended, and all its reports were read.
            if not job.ready() and (job._accepted or job._write_to in pool._pool):  # noqa: SLF001
                jobs[job._job] = job  # noqa: SLF001
                pool._busy_workers.add(job._write_to.inqW_fd)  # noqa: SLF001


def _write_on(pool: Any, job: Any) -> None:
    """Write the rest of a job that a child has read a part of: the `flush` of a closed pool would not."""
    writer = job._writer() if job._writer is not None else None  # noqa: SLF001
    if writer in pool._active_writers:  # noqa: SLF001
        pool._flush_writer(job._write_to, writer)  # noqa: SLF001
