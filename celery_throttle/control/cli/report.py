"""``report``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_throttle.control.cli.params import duration
from celery_throttle.control.cli.session import FOUND, PARTLY, command
from celery_throttle.control.report import report as reported

if TYPE_CHECKING:
    from datetime import timedelta

    from celery_throttle.control.cli.session import Session

__all__ = ["COMMANDS"]


@command("report")
@click.option(
    "--patience", type=duration, default="10m", show_default=True, metavar="10m",
    help="A longer wait, for a reason that an operator can end, is an alarm.",
)  # fmt: skip
def report(session: Session, patience: timedelta) -> int:
    """Print one verdict: the problems, their reasons and the next steps.

    Ends with 1 if there is an alarm (!), with 4 if there is none but not
    everything was checked (?); remarks (-) need no action.
    """
    verdict = reported(session.app, session.commands(), patience)
    if session.output.as_json:
        session.output.json(verdict)
    else:
        session.output.line(verdict)
    return FOUND if verdict.alarms else PARTLY if verdict.unchecked else 0


COMMANDS = {"report": report}
