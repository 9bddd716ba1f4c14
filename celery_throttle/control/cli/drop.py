"""``drop``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_throttle.control.cli import params
from celery_throttle.control.cli.session import NotFound, command, typed
from celery_throttle.core.wording import counted

if TYPE_CHECKING:
    from celery_throttle.control.cli.session import Session

__all__ = ["COMMANDS"]

_DROPPABLE = ("parked", "waiting for its identity lock")


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
    if session.output.as_json:
        session.output.json({"done": yes, "tasks": count})
    elif yes:
        session.output.line(f"{counted(count, 'task')} dropped.")
    else:
        session.output.line(f"{counted(count, 'task')} would be dropped" + ("; --yes does it." if count else "."))


def _drop_one(session: Session, task_id: str, yes: bool, signature: dict[str, Any]) -> int:
    if yes and session.throttle.drop(task_id, **signature):
        return 1
    state = session.throttle.explain(task_id).state
    if state in ("unknown", "lost"):
        raise NotFound(f"No task {task_id!r} is known to the store: it has ended, or is in its queue still")
    return int(not yes and state in _DROPPABLE)


COMMANDS = {"drop": drop}
