"""``audit``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_throttle.control.cli import params
from celery_throttle.control.cli.columns import CHANGES
from celery_throttle.control.cli.session import command, typed
from celery_throttle.control.several import changes_of

if TYPE_CHECKING:
    from celery_throttle.control.cli.session import Session

__all__ = ["COMMANDS"]


@command("audit")
@params.optional_limit
@params.key
@click.option("--most", type=click.IntRange(min=1), default=200, show_default=True, help="Rows at most.")
def audit(session: Session, limit: str | None, key: str | None, most: int) -> None:
    """List the changes at run time, newest first.

    The newest 200 changes of each group of limits are kept.
    """
    if limit is None and key is not None:
        raise click.UsageError(f"--key is one of a limit: write `{typed('audit', 'LIMIT', '--key', key)}`")
    rows = session.throttle.audit(most=most) if limit is None else changes_of(session.limits(limit, key), most)
    if session.output.as_json:
        session.output.json(rows)
        return
    session.output.table(CHANGES, rows, nothing="Nothing was changed.")


COMMANDS = {"audit": audit}
