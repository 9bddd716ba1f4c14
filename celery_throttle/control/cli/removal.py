"""What takes tasks and data out of the store: ``drop``, ``drain``, ``remove-data`` and ``reap``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
from kombu.exceptions import OperationalError

from celery_throttle.control.cli import params
from celery_throttle.control.cli.output import Column, needs_text
from celery_throttle.control.cli.session import FOUND, UNREACHABLE, Ended, command, typed
from celery_throttle.control.verbs import DROPPABLE
from celery_throttle.core.wording import counted
from celery_throttle.errors import StoreInUse
from celery_throttle.tasks.ours import REAP_TASK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.control.cli.session import Session
    from celery_throttle.control.removal import StoredData

_DRAINED = (
    Column("QUEUE", lambda row: row.queue),
    Column("TASKS", lambda row: row.tasks, right=True),
    Column("LEFT", lambda row: row.left, right=True),
    Column("OF ANOTHER BROKER", lambda row: row.elsewhere or "", right=True),
)
_RECLAIMED = (
    Column("TASK", lambda row: row.task_id),
    Column("HELD", lambda row: needs_text(row.needs), folds=True),
)


@command("drop")
@params.optional_limit
@params.key
@click.option("--task", "task_id", metavar="TASK_ID", help="Only this task, of any limit.")
@params.yes
@params.by
@params.why
def drop(
    session: Session, limit: str | None, key: str | None, task_id: str | None, yes: bool, **signature: Any
) -> None:
    """Drop all parked tasks of LIMIT, or one task: they end as revoked.

    Without --yes only counts the tasks. Running tasks go on.
    """
    if task_id is not None and (limit is not None or key is not None):
        raise click.UsageError(f"--task is one task of any limit: write `{typed('drop', '--task', task_id)}`")
    if key is not None and limit is None:
        raise click.UsageError(f"--key is one of a limit: write `{typed('drop', 'LIMIT', '--key', key)}`")
    if limit is None and not task_id:
        raise click.UsageError(
            f"write `{typed('drop', 'LIMIT')}`, with --key or without, or `{typed('drop', '--task', 'TASK_ID')}`"
        )
    if limit is not None:
        count = session.limit(limit, key).drop(**signature, dry_run=not yes)
    else:
        count = _drop_one(session, str(task_id), yes, signature)
    would = f"{counted(count, 'task')} would be dropped{'; --yes does it.' if count else '.'}"
    session.output.show({"done": yes, "tasks": count}, f"{counted(count, 'task')} dropped." if yes else would)


def _drop_one(session: Session, task_id: str, yes: bool, signature: dict[str, Any]) -> int:
    if yes and session.throttle.drop(task_id, **signature):
        return 1
    state = session.throttle.explain(task_id).state
    if state in ("unknown", "lost"):
        raise Ended(f"No task {task_id!r} is known to the store: it has ended, or is in its queue still", FOUND)
    return int(not yes and state in DROPPABLE)


@command("drain")
@params.yes
@params.by
@params.why
def drain(session: Session, yes: bool, **signature: Any) -> None:
    """Publish all parked tasks to the queues that they came from.

    A step of the removal of the library: stop the workers before. Without --yes only counts the tasks.
    """
    if session.by_url:
        raise click.UsageError("drain publishes to the app's broker: name the app with -A, not the store with --url")
    try:
        rows = session.throttle.drain(**signature, dry_run=not yes)
    except OperationalError as error:
        message = f"The broker does not answer, the other tasks stay parked: {error}"
        raise Ended(message, UNREACHABLE) from None
    output = session.output
    if output.as_json:
        output.json({"done": yes, "queues": rows})
        return
    output.table(_DRAINED, rows, nothing="Nothing is parked.")
    if not yes and any(row.tasks for row in rows):
        output.line("They would be published again; --yes does it.")
    if any(row.elsewhere for row in rows):
        output.line("Tasks of another broker stay parked: drain them with the app of that broker.")
    if yes and "django_celery_beat" in sys.modules:
        output.line(
            f"django-celery-beat keeps its row {REAP_TASK} when the library is removed: delete the row, or beat still "
            f"sends a task that no worker has."
        )
    if yes and any(row.left for row in rows):
        output.line(
            "The tasks that are left are duplicates that wait for their first, tasks that end without running, or "
            "tasks that workers park again: stop these workers, or start them with throttle_enabled = False."
        )


@command("remove-data")
@params.yes
@click.option("--force", is_flag=True, help="With --yes: also if workers, parked tasks or holders use the data.")
@params.by
@params.why
def remove_data(session: Session, yes: bool, force: bool, **signature: Any) -> None:
    """Delete all keys of the prefix, after throttling was removed.

    The last step, after drain. It deletes limits, overrides, audit, counts, identity
    locks and remembered calls. Without --yes only counts them.
    """
    if force and not yes:
        raise click.UsageError(f"--force needs --yes beside it: write `{typed('remove-data', '--yes', '--force')}`")
    try:
        data = session.throttle.remove_data(**signature, dry_run=not yes, force=force)
    except StoreInUse as error:
        raise Ended(f"{error}; --force beside --yes deletes the data anyway", FOUND) from None
    lines = [f"{counted(data.keys, 'key')} deleted."] if yes else _counts(data)
    others = (f"Keys that begin with {each} stay: another group, prefix or release has them." for each in data.others)
    session.output.show({"done": yes, "data": data, "in_use": data.in_use}, "\n".join([*lines, *others]))


def _counts(data: StoredData) -> Iterator[str]:
    yield f"keys            {data.keys}, of {' and '.join(data.spaces)}"
    yield f"bytes           {'not known' if data.size is None else data.size}"
    yield f"workers         {data.workers}"
    yield f"parked          {data.parked}"
    yield f"held            {data.held}"
    yield f"identity locks  {data.locks}"
    yield f"remembered      {data.remembered}"
    yield f"set aside       {data.set_aside}"
    yield ""
    yield from (f"! In use: {each}" for each in data.in_use)
    yield from (f"! Would go: {each}" for each in data.lost)
    if not data.keys:
        yield "Nothing is stored."
    elif data.in_use:
        yield "--yes refuses while the data is in use; --yes --force deletes the data anyway."
    else:
        yield "All of it would be deleted; --yes does it."


@command("reap")
def reap(session: Session) -> None:
    """Reclaim the permits of lost workers, whose leases have ended.

    Workers and beat do that by themselves; this command does it now.
    """
    session.output.show_rows(_RECLAIMED, session.throttle.reap(), nothing="No lease has ended.")
