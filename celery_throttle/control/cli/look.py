"""``status``, ``show`` and ``explain``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_throttle.control.cli import params
from celery_throttle.control.cli.columns import HOLDERS, PARKED
from celery_throttle.control.cli.columns import parked as columns_of
from celery_throttle.control.cli.session import FOUND, command
from celery_throttle.control.limit_control import MOST
from celery_throttle.control.pace import pace_of
from celery_throttle.control.several import holders_of, parked_of

if TYPE_CHECKING:
    from celery_throttle.control.cli.session import Session

__all__ = ["COMMANDS"]


@command("status")
@click.option(
    "--most", type=click.IntRange(min=1), default=MOST, show_default=True, help="Rows at most, limits before keys."
)
def status(session: Session, most: int) -> None:
    """How every limit stands.

    Of limits with keys, those keys that somebody holds or waits for, or has said something of.
    """
    rows = session.throttle.status(most=most, last_hour=session.output.as_json)
    if session.output.as_json:
        session.output.json(rows)
        return
    session.show_limits(rows)
    _say_if_cut(session, len(rows), most)


@command("show")
@params.limit
@params.key
@params.most
def show(session: Session, limit: str, key: str | None, most: int) -> None:
    """How a limit stands, who holds its permits and who waits for them.

    A key may also be written as it is shown: tenant[acme]. The name of a
    task shows all its limits.
    """
    limits = session.limits(limit, key)
    output = session.output
    statuses = [row for each in limits for row in (each.status(last_hour=output.as_json), *each.keys(most=MOST).rows)]
    holders, parked = holders_of(limits, most), parked_of(limits, most)
    if output.as_json:
        output.json({"status": statuses, "holders": holders, "parked": parked})
        return
    session.show_limits(statuses[:most])
    _say_if_cut(session, len(statuses), most)
    output.say()
    output.table(HOLDERS, holders, nothing="Nobody holds a permit.")
    _say_if_cut(session, len(holders), most)
    output.say()
    # Of keys it is not known how many start, and of several limits which one is the last to let a task start.
    one_line = len(statuses) == 1 and limits[0].key is None
    columns = columns_of(pace_of(statuses[0], limits[0].history())) if one_line else PARKED
    output.table(columns, parked, nothing="Nobody waits in its line.")
    _say_if_cut(session, len(parked), most)


@command("explain")
@click.argument("task_id")
def explain(session: Session, task_id: str) -> int:
    """What a task is doing, and why it waits.

    Ends with 1 if no worker has seen the task yet, or it has ended.
    """
    explanation = session.throttle.explain(task_id)
    if session.output.as_json:
        session.output.json(explanation)
    else:
        session.output.say(explanation)
    return FOUND if explanation.state == "unknown" else 0


def _say_if_cut(session: Session, rows: int, most: int) -> None:
    if rows >= most:
        session.output.say(f"These are the first {most}; --most has more.")


COMMANDS = {each.name: each for each in (status, show, explain)}
