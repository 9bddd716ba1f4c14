"""``status``, ``show`` and ``explain``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_throttle.control.cli import params
from celery_throttle.control.cli.columns import HOLDERS, PARKED
from celery_throttle.control.cli.columns import parked as columns_of
from celery_throttle.control.cli.session import FOUND, command
from celery_throttle.control.limit_control import MOST

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

    A key may also be written as it is shown: tenant[acme].
    """
    steers = session.limit(limit, key)
    keys = steers.keys(most=MOST)
    output = session.output
    statuses = [steers.status(last_hour=output.as_json), *keys.rows]
    holders, parked = steers.holders(most=most), steers.parked(most=most)
    if output.as_json:
        output.json({"status": statuses, "holders": holders, "parked": parked})
        return
    session.show_limits(statuses[:most])
    _say_if_cut(session, len(statuses), most)
    output.say()
    output.table(HOLDERS, holders, nothing="Nobody holds a permit.")
    _say_if_cut(session, len(holders), most)
    output.say()
    # Of keys it is not known how many start.
    one_line = steers.key is None and len(statuses) == 1
    output.table(
        columns_of(steers.history().per_second) if one_line else PARKED, parked, nothing="Nobody waits in its line."
    )
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
