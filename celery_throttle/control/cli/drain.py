"""``drain``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
from kombu.exceptions import OperationalError

from celery_throttle.control.cli import params
from celery_throttle.control.cli.columns import DRAINED
from celery_throttle.control.cli.session import Unreachable, command
from celery_throttle.tasks.ours import REAP_TASK

if TYPE_CHECKING:
    from celery_throttle.control.cli.session import Session

__all__ = ["COMMANDS"]


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
        raise Unreachable(f"The broker does not answer, the other tasks stay parked: {error}") from None
    output = session.output
    if output.as_json:
        output.json({"done": yes, "queues": rows})
        return
    output.table(DRAINED, rows, nothing="Nothing is parked.")
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


COMMANDS = {"drain": drain}
