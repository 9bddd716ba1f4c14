"""``top``."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from celery_throttle.control.cli.output import when
from celery_throttle.control.cli.params import duration
from celery_throttle.control.cli.session import command
from celery_throttle.errors import StoreUnavailable

if TYPE_CHECKING:
    from datetime import timedelta

    from celery_throttle.control.cli.session import Session
    from celery_throttle.store.rows import LimitStatus

__all__ = ["COMMANDS"]


@command("top")
@click.option(
    "--every", type=duration, default="2s", show_default=True, metavar="2s", help="From one look to the next."
)
@click.option("--times", type=click.IntRange(min=1), help="How many looks; by default until Ctrl-C.")
@click.option("--most", type=click.IntRange(min=1), default=30, show_default=True, help="Rows at most.")
def top(session: Session, every: timedelta, times: int | None, most: int) -> None:
    """Watch the limits, those with the longest lines first.

    With --json, one line for each look. While the store is away it says so, and goes on.
    """
    looks = 0
    while True:
        _look(session, most, first=not looks)
        looks += 1
        if looks == times:
            return
        try:
            time.sleep(every.total_seconds())
        except KeyboardInterrupt:
            return


def _look(session: Session, most: int, *, first: bool) -> None:
    output = session.output
    try:
        rows = sorted(session.throttle.status(), key=_busy)[:most]
    except StoreUnavailable as error:
        if first:
            raise
        click.echo(str(error), err=True)
        return
    if output.as_json:
        output.json_line(rows)
        return
    click.clear()  # does nothing where there is no terminal
    session.show_limits(rows, title=when(datetime.now(timezone.utc)))


def _busy(status: LimitStatus) -> tuple[int, int, str, str]:
    return -status.parked, -status.held, status.name, status.key or ""


COMMANDS = {"top": top}
