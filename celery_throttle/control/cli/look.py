"""``status``, ``show``, ``explain``, ``history``, ``top`` and ``audit``."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

import click

from celery_throttle.control.cli import params
from celery_throttle.control.cli.output import Column, needs_text, span, when
from celery_throttle.control.cli.session import FOUND, command, typed
from celery_throttle.control.known_limits import changes_of, holders_of, parked_of
from celery_throttle.control.limit_control import MOST
from celery_throttle.control.pace import Pace, pace_of
from celery_throttle.control.rows import longest_line
from celery_throttle.core.buckets import Bucket
from celery_throttle.errors import StoreUnavailable

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence
    from datetime import timedelta

    from celery_throttle.control.cli.session import Session
    from celery_throttle.store.history import History
    from celery_throttle.store.parked_tasks import Parked

#: The most rows without a terminal.
_ROWS = 30
#: Lines of the terminal that `top` needs beside its rows: a title, headings, the line about further rows, the cursor.
_BESIDE = 4
_HOLDERS = (
    Column("TASK", lambda row: row.task_id),
    Column("NAME", lambda row: row.task_name or ""),
    Column("HOLDS", lambda row: needs_text(row.needs), folds=True),
    Column("WORKER", lambda row: row.worker),
    Column("SINCE", lambda row: when(row.since)),
    Column(
        "LEASE LEFT", lambda row: span(row.lease_left) if row.lease_left > 0 else f"ended {span(-row.lease_left)} ago"
    ),
    Column("QUEUE", lambda row: row.queue or ""),
    Column("STARTED BEFORE", lambda row: row.deliveries or "", right=True),
)
_PARKED = (
    Column("PLACE", lambda row: row.place, right=True),
    Column("TASK", lambda row: row.task_id),
    Column("NAME", lambda row: row.task_name or ""),
    Column("LINE", lambda row: "" if row.limit is None else Bucket(row.limit, row.key)),
    Column("SINCE", lambda row: when(row.since)),
    Column("QUEUE", lambda row: row.queue),
    Column("WAITS UNTIL", lambda row: f"{when(row.wait_ends)} ({row.wait_ends_by})" if row.wait_ends else ""),
    Column("STARTED BEFORE", lambda row: row.deliveries or "", right=True),
)
_CHANGES = (
    Column("AT", lambda row: when(row.at)),
    Column("BY", lambda row: row.by),
    Column("WHAT", lambda row: row.what, folds=True),
    Column("WHY", lambda row: row.why, folds=True),
)
_BARS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
#: The counts of a `Period`, and the words for those that are not in the name.
_COUNTS = ("started", "at_once", "parked", "ended", "failed", "sent_back", "refused", "duplicates", "reclaimed")
_IN_WORDS = {"at_once": "at once", "sent_back": "sent back (RateLimited)", "refused": "refused (max_parked)"}


@command("status")
@click.option("--keys", is_flag=True, help="List the keys too, those with the longest lines first.")
@click.option(
    "--most", type=click.IntRange(min=1), default=MOST, show_default=True, help="Rows at most, limits before keys."
)
def status(session: Session, keys: bool, most: int) -> None:
    """Show the status of all limits.

    The numbers of a limit with keys are the sums of its keys in use. --json
    always lists the keys.
    """
    output = session.output
    if output.as_json:
        output.json(session.throttle.status(most=most, last_hour=True))
        return
    found = session.throttle.status(most=max(most, MOST))
    limits = [row for row in found if row.key is None]
    of_keys = sorted((row for row in found if row.key is not None), key=longest_line)
    session.show_limits(limits[:most], of_keys)
    _print_if_cut(session, len(limits), most)
    if keys and of_keys and len(limits) < most:
        output.line()
        shown = of_keys[: most - len(limits)]
        session.show_limits(shown)
        _print_if_cut(session, len(limits) + len(shown), most)


@command("show")
@params.limit
@params.key
@click.option("--most", type=click.IntRange(1, 1000), default=100, show_default=True, help="Rows of a table at most.")
def show(session: Session, limit: str, key: str | None, most: int) -> None:
    """Show the status of a limit, its holders and its parked tasks.

    A key may also be written as in the output: tenant[acme]. The name of a
    task shows all its limits.
    """
    limits = session.limits(limit, key)
    output = session.output
    statuses = [row for each in limits for row in (each.status(last_hour=output.as_json), *each.keys(most=MOST).rows)]
    holders, parked = holders_of(limits, most), parked_of(limits, most)
    if output.as_json:
        output.json({"status": statuses, "holders": holders, "parked": parked})
        return
    session.show_limits(statuses[:most], [row for row in statuses if row.key is not None])
    _print_if_cut(session, len(statuses), most)
    output.line()
    output.table(_HOLDERS, holders, nothing="No task holds a permit.")
    _print_if_cut(session, len(holders), most)
    output.line()
    # Starts of keys are not counted, and of several limits it is not known which one lets a task start last.
    one_line = len(statuses) == 1 and limits[0].key is None
    columns = _with_starts(pace_of(statuses[0], limits[0].history())) if one_line else _PARKED
    output.table(columns, parked, nothing="No task waits in its line.")
    _print_if_cut(session, len(parked), most)


@command("explain")
@click.argument("task_id")
def explain(session: Session, task_id: str) -> int:
    """Show the state of a task, and the reason why it waits.

    Ends with 1 if no worker has seen the task yet, or the task has ended.
    """
    explanation = session.throttle.explain(task_id)
    session.output.show(explanation, explanation)
    return FOUND if explanation.state == "unknown" else 0


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
    session.output.show_rows(_CHANGES, rows, nothing="Nothing was changed.")


def _with_starts(pace: Pace) -> tuple[Column, ...]:
    """Return the columns of parked tasks in a line with this pace, with the estimated start of each task."""

    def about(row: Parked) -> str:
        starts_in = pace.starts_in(row.place)
        return "" if starts_in is None else span(starts_in)

    return (*_PARKED, Column("STARTS IN ABOUT", about))


def _print_if_cut(session: Session, rows: int, most: int) -> None:
    if rows >= most:
        session.output.line(f"These are the first {most}; there may be more: see --most.")


@command("top")
@click.option(
    "--every", type=params.duration, default="2s", show_default=True, metavar="2s", help="Time between two looks."
)
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
        output.json(rows, indent=None)
        return
    click.clear()
    session.output.line(when(datetime.now(timezone.utc)))
    session.show_limits(rows, one_line_each=True)
    if len(found) > len(rows):
        more = " or more" if len(found) >= MOST else ""
        left_out = f"The first {len(rows)} of {len(found)}{more} limits and keys; --most shows more."
        output.line(_fitting(left_out, terminal))


def _fitting(text: str, terminal: os.terminal_size | None) -> str:
    return text if terminal is None else text[: terminal.columns]


class _Row(NamedTuple):
    """A row of the history: the values of the periods, their sum and their maximum."""

    what: str
    each: Sequence[float | None]
    all: str
    most: str


@command("history")
@params.limit
@click.option("--day", is_flag=True, help="The last day by quarters of an hour, not the last hour by minutes.")
def history(session: Session, limit: str, day: bool) -> None:
    """Show the history of a limit, with all its keys: starts, waits, ends.

    Busy workers report their counts each ten seconds, others once a minute.
    The name of a task shows all its limits.
    """
    found = [each.history(day=day) for each in session.limits(limit, None)]
    if session.output.as_json:
        rows = [
            {"limit": each.limit, "until": each.until, "total": each.total, "periods": each.periods} for each in found
        ]
        session.output.json(rows if len(rows) > 1 else rows[0])
        return
    for number, each in enumerate(found):
        if number:
            session.output.line()
        _show(session, each, day=day, title=f"limit {each.limit}" if len(found) > 1 else "")


def _show(session: Session, found: History, *, day: bool, title: str) -> None:
    length = "QUARTER OF AN HOUR" if day else "MINUTE"
    columns = (
        Column("WHAT", lambda row: row.what),
        Column(f"EACH {length} UNTIL {when(found.until)}", lambda row: _drawn(row.each)),
        Column("ALL", lambda row: row.all, right=True),
        Column("MOST", lambda row: row.most, right=True),
    )
    rows = [*_counts(found), *_times(found), *_peaks(found)]
    if title:
        session.output.line(title)
    session.output.table(columns, rows, nothing="Nothing was counted.")


def _counts(found: History) -> Iterator[_Row]:
    for name in _COUNTS:
        each = [getattr(period, name) for period in found.periods]
        if any(each):
            yield _Row(_IN_WORDS.get(name, name), each, str(getattr(found.total, name)), str(max(each)))


def _times(found: History) -> Iterator[_Row]:
    total = found.total
    for share in (0.5, 0.95):
        if (wait := total.wait(share)) is not None:
            waits = [each.wait(share) for each in found.periods]
            yield _Row(f"wait, {share:.0%} within", waits, span(wait), _longest(waits))
    if total.ended:
        means = [each.run_time / each.ended if each.ended else None for each in found.periods]
        yield _Row("run time, on average", means, span(total.run_time / total.ended), _longest(means))


def _peaks(found: History) -> Iterator[_Row]:
    if found.total.held_most is not None:
        yield _Row("held at once", [each.held_most for each in found.periods], "", str(found.total.held_most))
        yield _Row("parked at once", [each.parked_most for each in found.periods], "", str(found.total.parked_most))


def _longest(times: Sequence[float | None]) -> str:
    return span(max(each or 0 for each in times))


def _drawn(values: Sequence[float | None]) -> str:
    """Return a bar for each value, a dot for 0 and None."""
    most = max((each for each in values if each is not None), default=0) or 1
    return "".join(_BARS[min(int(each / most * 8), 7)] if each else "\u00b7" for each in values)
