"""Find identity locks that no run will free: their tasks have ended elsewhere, or no live worker has them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from celery import states

from celery_throttle.control.declarations import live_workers
from celery_throttle.control.findings import Finding
from celery_throttle.control.reader import MOST
from celery_throttle.core.wording import at, counted, one_line, shortened
from celery_throttle.tasks.result_backends import answers_caller_only

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.control.lines import Look
    from celery_throttle.store.identity_locks import LockStatus

__all__ = ["left_locks"]

#: Locks of a group whose results are looked up, the oldest first.
_MOST_RESULTS = 100
_MOST_COMMANDS = 3
#: The clocks of the store and of a worker may differ by as much.
_CLOCKS = timedelta(minutes=1)


def left_locks(look: Look) -> Iterator[Finding]:
    """Yield the locks that wait for the run of a task which has a result, or which no live worker has."""
    queued = [each for each in look.reader.locks(MOST) if each.state == "queued"]
    queued.sort(key=lambda each: each.since)
    ended = list(_ended(look, queued))
    if ended:
        why = "The result backend has its result, and no worker has reported its end to the store."
        yield _finding(look, ended, "has ended", why)
    has = {name for worker in live_workers(look) for name in worker.options.get("task", {})}
    unknown = [each for each in queued if has and each.task_name and each.task_name not in has and each not in ended]
    if unknown:
        names = shortened(sorted({str(each.task_name) for each in unknown}))
        why = f"It is parked, and no live worker declares {names} with base=Throttled."
        yield _finding(look, unknown, "is known to no live worker", why, alarm=False)


def _ended(look: Look, queued: list[LockStatus]) -> Iterator[LockStatus]:
    backend = look.app.backend
    if not queued or answers_caller_only(backend):
        return
    if len(queued) > _MOST_RESULTS:
        look.unchecked.append(f"Whether the tasks of {len(queued) - _MOST_RESULTS} newer identity locks have ended.")
    for each in queued[:_MOST_RESULTS]:
        try:
            about = backend.get_task_meta(each.task_id, cache=False)
        except NotImplementedError:  # results are disabled
            return
        except Exception as error:  # noqa: BLE001 - of any backend
            look.unchecked.append(f"Whether the tasks of identity locks have ended: {error}.")
            return
        if about.get("status") in states.READY_STATES and not _is_before(about.get("date_done"), each.since):
            yield each


def _is_before(done: Any, since: datetime) -> bool:
    """Return whether a result is that of an earlier call with the same task id."""
    if isinstance(done, str):
        try:
            done = datetime.fromisoformat(done)
        except ValueError:
            return False
    if not isinstance(done, datetime):
        return False
    return (done if done.tzinfo else done.replace(tzinfo=timezone.utc)) < since - _CLOCKS


def _finding(look: Look, locks: list[LockStatus], what: str, why: str, *, alarm: bool = True) -> Finding:
    tasks, since = [each.task_id for each in locks], locks[0].since
    several = (
        "The task of an identity lock" if len(locks) == 1 else f"Each of {counted(len(locks), 'task')} with a lock"
    )
    return Finding(
        "lock-left",
        alarm,
        one_line(f"{several} {what}, so calls with its arguments are dropped: {shortened(tasks)}."),
        one_line(f"{why} The first lock is queued since {at(since)}."),
        tuple(
            look.commands.throttle("unlock", options=[("identity", each.identity)]) for each in locks[:_MOST_COMMANDS]
        ),
        since=since,
    )
