"""Tables and JSON: rich on a terminal if it is there, plain columns everywhere else."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, is_dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from celery_throttle.core.wording import at, one_line, span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["Column", "Output", "readable", "span", "when"]


class Column(NamedTuple):
    """One column: its heading, and what it shows of a row."""

    heading: str
    text: Callable[[Any], object]
    right: bool = False


class Output:
    """Where a command writes.

    Args:
        as_json: whether JSON is wanted.
        plain: no colours.
    """

    def __init__(self, *, as_json: bool, plain: bool = False) -> None:
        self.as_json = as_json
        self._plain = plain

    def json(self, value: object) -> None:
        """Write a value as JSON, in one piece."""
        click.echo(json.dumps(readable(value), indent=2, ensure_ascii=False))

    def json_line(self, value: object) -> None:
        """Write a value as JSON in one line."""
        click.echo(json.dumps(readable(value), ensure_ascii=False))

    def say(self, text: object = "") -> None:
        """Write a line, or several."""
        click.echo("\n".join(one_line(line) for line in str(text).split("\n")))

    def table(self, columns: Sequence[Column], rows: Iterable[object], *, title: str = "", nothing: str = "") -> None:
        """Write rows below their headings; without rows the line ``nothing``."""
        if title:
            click.echo(one_line(title))
        cells = [[one_line(str(column.text(row))) for column in columns] for row in rows]
        if not cells:
            click.echo(one_line(nothing))
            return
        # A column that says nothing of any row is left out.
        used = [number for number in range(len(columns)) if any(row[number] for row in cells)]
        columns, cells = [columns[each] for each in used], [[row[each] for each in used] for row in cells]
        if self._plain or not sys.stdout.isatty() or not _drawn(columns, cells):
            for line in _aligned(columns, cells):
                click.echo(line)


def readable(value: Any) -> Any:
    """Return a value as JSON has it: records by the names of their attributes, times as ISO 8601."""
    if is_dataclass(value):
        # Those without a place in repr() are no part of what was promised.
        return {each.name: readable(getattr(value, each.name)) for each in fields(value) if each.repr}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {name: readable(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [readable(each) for each in value]
    return value


def when(time: datetime | None) -> str:
    """Return a moment as `explain` says it, but for the seconds' fraction."""
    return "" if time is None else at(time.astimezone(timezone.utc))


def _aligned(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> Iterable[str]:
    table = [[column.heading for column in columns], *cells]
    widths = [max(len(row[number]) for row in table) for number in range(len(columns))]
    for row in table:
        sides = zip(row, widths, columns, strict=True)
        yield "  ".join(
            cell.rjust(width) if column.right else cell.ljust(width) for cell, width, column in sides
        ).rstrip()


def _drawn(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> bool:
    """Draw the table with rich; False if that is not installed."""
    try:
        from rich.console import Console  # noqa: PLC0415 - an extra, and nobody without a terminal needs it
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415
    except ImportError:
        return False
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.heading, justify="right" if column.right else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))  # names are not markup: tenant[red]
    Console().print(table)
    return True
