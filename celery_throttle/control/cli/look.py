"""``status``, ``show``, ``explain`` and ``audit``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_throttle.control.cli import params
from celery_throttle.control.cli.columns import CHANGES, HOLDERS, PARKED
from celery_throttle.control.cli.columns import parked as columns_of
from celery_throttle.control.cli.session import FOUND, command, typed
from celery_throttle.control.known_limits import changes_of, holders_of, parked_of
from celery_throttle.control.limit_control import MOST
from celery_throttle.control.limit_keys import longest_line
from celery_throttle.control.pace import pace_of

if TYPE_CHECKING:
    from celery_throttle.control.cli.session import Session

__all__: list[str] = []


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
@params.most
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
    output.table(HOLDERS, holders, nothing="No task holds a permit.")
    _print_if_cut(session, len(holders), most)
    output.line()
    # Starts of keys are not counted, and of several limits it is not known which one lets a task start last.
    one_line = len(statuses) == 1 and limits[0].key is None
    columns = columns_of(pace_of(statuses[0], limits[0].history())) if one_line else PARKED
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
    session.output.show_rows(CHANGES, rows, nothing="Nothing was changed.")


def _print_if_cut(session: Session, rows: int, most: int) -> None:
    if rows >= most:
        session.output.line(f"These are the first {most}; --most has more.")
