"""``reap``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_throttle.control.cli.columns import RECLAIMED
from celery_throttle.control.cli.session import command

if TYPE_CHECKING:
    from celery_throttle.control.cli.session import Session

__all__ = ["COMMANDS"]


@command("reap")
def reap(session: Session) -> None:
    """Reclaim the permits of lost workers, whose leases have ended.

    Workers and beat do that by themselves; this command does it now.
    """
    rows = session.throttle.reap()
    if session.output.as_json:
        session.output.json(rows)
        return
    session.output.table(RECLAIMED, rows, nothing="No lease has ended.")


COMMANDS = {"reap": reap}
