"""Check the names of queues, tasks and limits that a caller gives."""

from __future__ import annotations

import shlex
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from celery.result import AsyncResult

from celery_throttle.control.reader import AT_ONCE
from celery_throttle.core.buckets import Bucket
from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["queue_names", "task_id_of", "unknown_limit"]


def queue_names(method: str, queues: Iterable[str]) -> tuple[str, ...]:
    """Return the checked names of queues.

    Raises:
        ConfigurationError: a name is no text, or empty.
    """
    named: tuple[Any, ...] = (queues,) if isinstance(queues, str) else tuple(queues)
    for each in named:
        if not isinstance(each, str) or not each:
            raise ConfigurationError(
                f"ThrottleControl.{method}: a queue is named by text, got {each!r:.80}: write 'celery'"
            ).for_shell(f"A queue has a name, got {each!r:.80}: write `{{command}} celery`")
    return named


def task_id_of(method: str, task: object) -> str:
    """Return the id of a task that is given by its id or its `AsyncResult`.

    Raises:
        ConfigurationError: the value is neither.
    """
    task_id = task.id if isinstance(task, AsyncResult) else task
    if not isinstance(task_id, str) or not task_id:
        option = " --task" if method == "drop" else ""
        raise ConfigurationError(
            f"{method}: a task's id or what delay() returned is wanted, got {task_id!r}: write {method}(result.id)"
        ).for_shell(f"A task's id is wanted, got {task_id!r}: write `{{throttle}} {method}{option} TASK_ID`")
    return task_id


def unknown_limit(name: str, known: set[str], *, is_task: bool) -> ConfigurationError:
    """Return the error for an unknown limit, with the likeliest name."""
    limits = sorted(each for each in known if Bucket.parse(each).key is None)
    bare, split, key = name.removesuffix("]").partition("[")
    close = get_close_matches(name, limits, n=1)
    meant, shell = f", did you mean {close[0]!r}?" if close else ":", ""
    if split and bare in limits:  # the text of a `Bucket`
        meant = f": write limit({bare!r}, key={key!r})."
        shell = f": write `{{command}} {shlex.quote(f'{bare}[{key}]')}`, without --key."
    if is_task:  # a similar name of a limit would mislead here
        meant = f", but a task has this id: explain and drop take it, throttle.drop({name!r}) or drop --task {name}."
        task = shlex.quote(name)
        shell = f", but a task has this id: write `{{throttle}} explain {task}` or `{{throttle}} drop --task {task}`."
    there = ", ".join(limits[:AT_ONCE]) or "none"
    error = ConfigurationError(f"No limit {name!r}{meant} Known limits: {there}")
    return error.for_shell(f"No limit {name!r}{shell or meant} Known limits: {there}")
