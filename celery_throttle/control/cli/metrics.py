"""``metrics`` and ``runnable``."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import click

from celery_throttle.control.cli.output import Column
from celery_throttle.control.cli.session import FOUND, WRONG, Ended, command
from celery_throttle.control.metrics import exposition, measured
from celery_throttle.control.runnable import UnknownQueue

if TYPE_CHECKING:
    from celery_throttle.control.cli.session import Session


def _known(count: int | None, *, at_least: bool = False) -> str:
    return "?" if count is None else f"{count}{'+' if at_least else ''}"


_RUNNABLE = (
    Column("QUEUE", lambda row: row.queue),
    Column("RUNNABLE", lambda row: _known(row.runnable, at_least=row.at_least), right=True),
    Column("IN BROKER", lambda row: _known(row.messages), right=True),
    Column("RUNNING", lambda row: row.running, right=True),
    Column("READY", lambda row: _known(row.ready, at_least=row.at_least), right=True),
)


@command("metrics")
@click.option(
    "--to", type=click.Path(dir_okay=False, path_type=Path), help="Write the metrics to this file, atomically."
)
@click.option("--queue", "queues", multiple=True, help="A further queue, if the app's configuration does not name it.")
def metrics(session: Session, to: Path | None, queues: tuple[str, ...]) -> None:
    """Print the metrics of the limits as text for Prometheus.

    With --to, write a file for a textfile collector; it is replaced as a whole. If
    the store does not answer, the file stays unchanged.
    """
    unknown: list[str] = []
    found = measured(session.app, queues, unknown.append)
    if to is not None:
        _replace(to, exposition(found))
    if session.output.as_json:
        session.output.json(found)
    elif to is None:
        click.echo(exposition(found), nl=False)
    if unknown:  # the other metrics are written
        raise Ended(" ".join(unknown), FOUND)


@command("runnable")
@click.argument("queues", nargs=-1)
def runnable(session: Session, queues: tuple[str, ...]) -> None:
    """Count the tasks of each queue that could run now, to scale workers by.

    These are messages in the broker, throttled tasks that run, and parked
    tasks for which permits are free. Tasks that a limit holds back are not
    counted.
    """
    try:
        found = session.throttle.runnable(*queues)
    except UnknownQueue as error:
        raise Ended(str(error), FOUND) from None
    if session.output.as_json:
        session.output.json(found)
        return
    session.output.table(_RUNNABLE, found, nothing="No queue is known: name some.")
    for each in found:
        if not each.known:
            session.output.line(f"{each}.")


def _replace(path: Path, text: str) -> None:
    """Replace a file as a whole, so that no reader sees a part of it; the umask sets its mode."""
    # Collectors only read names that end in .prom.
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        with beside.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise Ended(f"{path} cannot be written: {error.strerror or error}", WRONG) from error
