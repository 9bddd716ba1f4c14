"""``top``."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from celery_throttle.control.cli.output import when
from celery_throttle.control.cli.params import duration
from celery_throttle.control.cli.session import command
from celery_throttle.control.limit_control import MOST
from celery_throttle.control.limit_keys import longest_line
from celery_throttle.errors import StoreUnavailable

if TYPE_CHECKING:
    import os
    from datetime import timedelta

    from celery_throttle.control.cli.session import Session

__all__: list[str] = []


#: The most rows without a terminal.
_ROWS = 30
#: Lines of the terminal that `top` needs beside its rows: a title, headings, the line about further rows, the cursor.
_BESIDE = 4


@command("top")
@click.option("--every", type=duration, default="2s", show_default=True, metavar="2s", help="Time between two looks.")
@click.option("--times", type=click.IntRange(min=1), help="How many looks; by default until Ctrl-C.")
@click.option("--most", type=click.IntRange(min=1), help="Rows at most; by default as many as the terminal has, or 30.")
def top(session: Session, every: timedelta, times: int | None, most: int | None) -> None:
    """Watch the limits, those with the longest lines first.

    With --json, one line for each look. While the store is away, the error is
    shown and the command goes on.
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


def _look(session: Session, most: int | None, *, first: bool) -> None:
    output, terminal = session.output, session.output.terminal()
    try:
        found = session.throttle.status()
    except StoreUnavailable as error:
        if first:
            raise
        click.clear()  # does nothing without a terminal
        click.echo(_fitting(str(error), terminal), err=True)
        return
    room = _ROWS if terminal is None else max(1, terminal.lines - _BESIDE)
    rows = sorted(found, key=longest_line)[: room if most is None else most]
    if output.as_json:
        output.json_line(rows)
        return
    click.clear()
    session.output.line(when(datetime.now(timezone.utc)))
    session.show_limits(rows, one_line_each=True)
    if len(found) > len(rows):
        output.line(_fitting(_left_out(len(rows), len(found)), terminal))


def _left_out(shown: int, found: int) -> str:
    more = " or more" if found >= MOST else ""
    return f"The first {shown} of {found}{more} limits and keys; --most shows more."


def _fitting(text: str, terminal: os.terminal_size | None) -> str:
    return text if terminal is None else text[: terminal.columns]
