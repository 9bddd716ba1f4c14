"""``history``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from celery_throttle.control.cli import params
from celery_throttle.control.cli.output import Column, when
from celery_throttle.control.cli.session import command
from celery_throttle.core.wording import span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from celery_throttle.control.cli.session import Session
    from celery_throttle.store.history import History, Period

_BARS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_COUNTS: dict[str, Callable[[Period], int]] = {
    "started": lambda each: each.started,
    "at once": lambda each: each.at_once,
    "parked": lambda each: each.parked,
    "ended": lambda each: each.ended,
    "failed": lambda each: each.failed,
    "sent back (RateLimited)": lambda each: each.sent_back,
    "refused (max_parked)": lambda each: each.refused,
    "duplicates": lambda each: each.duplicates,
    "reclaimed": lambda each: each.reclaimed,
}


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
    for what, count in _COUNTS.items():
        each = [count(period) for period in found.periods]
        if any(each):
            yield _Row(what, each, str(count(found.total)), str(max(each)))


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
