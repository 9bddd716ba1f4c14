"""Find leases that workers have stopped renewing: their workers, the duplicates that wait, the runs that may go on."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from celery_throttle.control.findings import Commands, Finding
from celery_throttle.core.wording import at, counted, shortened, span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.control.lines import Look
    from celery_throttle.control.reader import Reader
    from celery_throttle.store.holders import Holder
    from celery_throttle.store.workers import LostRun

__all__ = ["OVERDUE", "misses_renewals", "running_twice", "silent_workers"]

#: Seconds. Workers and beat check leases at least this often, so none of them has seen a lease that ended before that.
OVERDUE = 5.0
#: The most duplicates that are checked, each with a call.
_MOST_DUPLICATES = 50
#: A worker renews a lease each time this part of it has passed. A lease with less than this left has missed a renewal.
_PART = 1 / 3


def silent_workers(look: Look) -> Iterator[Finding]:
    """Yield the workers that hold permits or locks and do not answer, and the tasks that wait for these locks."""
    reader, holders, commands = look.reader, look.holders, look.commands
    lease = reader.store.lease
    late = [each for each in holders if misses_renewals(each, lease)]
    overdue = [each for each in late if each.lease_left < -OVERDUE]
    if overdue:
        yield _overdue(overdue, commands)
    silent = [each for each in late if each.lease_left >= -OVERDUE]
    for worker in sorted({each.worker for each in silent}):
        yield _silent(worker, [each for each in silent if each.worker == worker], lease, commands)
    if late:
        yield from _duplicates(reader, {each.task_id: each for each in late}, lease)


def misses_renewals(holder: Holder, lease: float) -> bool:
    """Return whether the worker of a holder should have renewed its lease by now."""
    return holder.lease_left < lease * _PART


def _overdue(holders: list[Holder], commands: Commands) -> Finding:
    tasks = [each.task_id for each in holders]
    return Finding(
        "lost",
        True,
        f"Workers that are lost or cut off from the store still hold permits for {counted(len(tasks), 'task')}: "
        f"{shortened(tasks)}.",
        f"The lease of {tasks[0]} ended {span(-holders[0].lease_left)} ago, and no worker and no beat has checked it "
        "since.",
        (commands.throttle("reap"),),
    )


def _silent(worker: str, holders: list[Holder], lease: float, commands: Commands) -> Finding:
    tasks = [each.task_id for each in holders]
    left = min(each.lease_left for each in holders)
    node = worker.partition("/")[0]
    ends = f"the first lease ends in {span(left)}" if left > 0 else f"the first lease ended {span(-left)} ago"
    return Finding(
        "silent",
        True,
        f"Worker {worker} does not answer, and holds permits for {counted(len(tasks), 'task')}: {shortened(tasks)}.",
        f"It renews each lease every {span(lease * _PART)}, and has not for {span(lease - left)}: {ends}, and then "
        "others get the permits, whether its tasks still run or not.",
        (commands.inspect("ping", node),) if "@" in node else (),
    )


def _duplicates(reader: Reader, late: dict[str, Holder], lease: float) -> Iterator[Finding]:
    """Yield the tasks that wait until one of these holders has ended."""
    waiting: dict[str, list[str]] = {}
    for each in islice(reader.waiting_for_outcomes(), _MOST_DUPLICATES):
        lock = reader.explain(each.task).lock
        if lock and lock[1] in late:
            waiting.setdefault(lock[1], []).append(each.task)
    for first, tasks in waiting.items():
        holder = late[first]
        wait = "task waits" if len(tasks) == 1 else "tasks wait"
        yield Finding(
            "duplicate-waits",
            True,
            f"{len(tasks)} {wait} for the identity lock of task {first}, whose worker does not answer: "
            f"{shortened(tasks)}.",
            f"Worker {holder.worker} has not renewed the lease for {span(lease - holder.lease_left)}. Once the lease "
            "is reclaimed the lock is free, and a second run may begin while the first still runs.",
            waits=len(tasks),
        )


def running_twice(look: Look) -> Iterator[Finding]:
    """Yield the singletons that may run twice now."""
    for run in look.reader.lost_runs():
        if run.lock is None or not run.twice:
            continue
        _, task, since, nonce = run.lock
        node = run.worker.partition("/")[0]
        where = f"on worker {run.worker}" if run.heard else f"may still run on worker {run.worker}"
        if task == run.task:
            other = f"and {where}"
        else:
            other = f"and task {run.task} with the same identity {'runs ' if run.heard else ''}{where}"
        yield Finding(
            "runs-twice",
            True,
            f"Task {task}, which runs once, runs on worker {nonce.partition(':')[0]}, {other}.",
            f"{_silence(run)} The other run began {at(since)}.",
            (look.commands.inspect("ping", node),) if "@" in node else (),
        )


def _silence(run: LostRun) -> str:
    called = f" That worker has called since, at {at(run.heard)}, so its run goes on." if run.heard else ""
    return f"Worker {run.worker} {run.silence}, and has not reported an end.{called}"
