"""``simulate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_throttle.control.cli import params
from celery_throttle.control.cli.output import Column
from celery_throttle.control.cli.session import command, typed
from celery_throttle.control.load import read_question
from celery_throttle.control.outcomes import HEADINGS
from celery_throttle.control.overrides import read_numbers
from celery_throttle.control.what_if import simulate_load
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.checks import MOST
from celery_throttle.core.wording import counted

if TYPE_CHECKING:
    from celery_throttle.control.cli.session import Session
    from celery_throttle.control.what_if import Simulation


def _column(number: int, heading: str) -> Column:
    in_words = heading in ("OUTCOME", "RATE", "LINE GONE")
    return Column(heading, lambda row: row.cells[number], right=not in_words, folds=heading == "LINE GONE")


_COLUMNS = [_column(*each) for each in enumerate(HEADINGS)]


@command("simulate", storeless="limit")
@params.optional_limit
@click.option("--permits", type=click.IntRange(1, MOST), help="The number of permits; as now by default.")
@params.rate
@params.burst
@params.key
@click.option("--arrivals", default="x1", metavar="x1.5|5/s", help="Other arrivals than in the last hour.")
@click.option("--runtime", default="x1", metavar="x2|0.4s", help="Another mean run time than in the last hour.")
@click.option("--spread", type=float, default=1.0, show_default=True, help="Standard deviation of run times / mean.")
@click.option("--for", "lasts", type=params.duration, default="1h", show_default=True, metavar="1h", help="How long.")
@click.option("--target", type=params.duration, metavar="2s", help="Find the least number with 95% of waits within.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Draw other tasks.")
def simulate(
    session: Session,
    limit: str | None,
    key: str | None,
    permits: int | None,
    rate: tuple[str, ...],
    burst: tuple[int, ...],
    runtime: str,
    **load: Any,
) -> None:
    """Simulate an hour with other numbers or another load, beside the last hour.

    Without LIMIT no store is needed: --arrivals 5/s --runtime 0.4s --permits 8.
    Nothing is changed.
    """
    if key is not None and limit is None:
        raise click.UsageError(f"--key is one of a limit: write `{typed('simulate', 'LIMIT', '--key', key)}`")
    if burst and not rate:
        raise click.UsageError(f"--burst needs --rate beside it: write --rate 50/m --burst {burst[0]}")
    if len(burst) not in (0, 1, len(rate)):
        raise click.UsageError(
            f"{len(burst)} bursts for {counted(len(rate), 'rate')}: write one for all, or one for each"
        )
    numbers: dict[str, Any] = {"permits": permits, "rate": list(rate) or None}
    if burst:
        numbers["burst"] = list(burst) if len(burst) > 1 else burst[0]
    if limit is not None:
        found = session.limit(limit, key).simulate(**numbers, run_time=runtime, **load)
    elif permits is None and not rate:
        raise click.UsageError("Without LIMIT a number is missing: write --permits 8 or --rate 50/m")
    else:
        given = read_numbers("simulate", Bucket("simulate"), **{"burst": None} | numbers, declared=tuple)
        found = simulate_load(given, read_question(run_time=runtime, **load))
    _show(session, found)


def _show(session: Session, found: Simulation) -> None:
    output = session.output
    if output.as_json:
        output.json(found)
        return
    output.line(found.heading)
    output.line()
    output.table(_COLUMNS, found.outcomes)
    output.line()
    for note in found.notes:
        output.line(note)
