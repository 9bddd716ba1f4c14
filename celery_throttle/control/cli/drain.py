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
def drain(session: Session, yes: bool, **said: Any) -> None:
    """Publish all parked tasks again, to the queues that they came from.

    To do without throttling: stop the workers before. Without --yes only says how many there are.
    """
    if session.by_url:
        raise click.UsageError("drain publishes to the app's broker: name the app with -A, not the store with --url")
    try:
        rows = session.throttle.drain(**said, dry_run=not yes)
    except OperationalError as error:
        raise Unreachable(f"The broker does not answer, what was not published is parked as before: {error}") from None
    output = session.output
    if output.as_json:
        output.json({"done": yes, "queues": rows})
        return
    output.table(DRAINED, rows, nothing="Nothing is parked.")
    if not yes and any(row.tasks for row in rows):
        output.say("They would be published again; --yes does it.")
    if any(row.elsewhere for row in rows):
        output.say("Tasks of another broker stay parked: drain them with the app of that broker.")
    if yes and "django_celery_beat" in sys.modules:
        output.say(
            f"django-celery-beat keeps its row {REAP_TASK} when the library is removed: delete it, or beat goes on to "
            f"send a task that no worker knows."
        )
    if yes and any(row.left for row in rows):
        output.say(
            "What is left are duplicates that wait for their first, those that have only to be told that they do not "
            "run, or what workers park again: stop these, or start them with throttle_enabled = False."
        )


COMMANDS = {"drain": drain}
