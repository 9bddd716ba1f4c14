"""Write tables and JSON: tables as wide as the terminal, plain columns without one."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import fields, is_dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from celery_throttle.control.cli.layout import Table
from celery_throttle.core.wording import at, one_line, span

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from celery_throttle.control.cli.layout import Column

__all__ = ["Output", "readable", "span", "when"]


class Output:
    """The output of a command.

    Args:
        as_json: whether to write JSON.
        plain: whether to write no colours.
    """

    def __init__(self, *, as_json: bool, plain: bool = False) -> None:
        self.as_json = as_json
        self._plain = plain

    def json(self, value: object) -> None:
        """Write a value as indented JSON."""
        click.echo(_dumped(value, indent=2))

    def show(self, value: object, text: object) -> None:
        """Write a value: as JSON, or as this text of one or more lines."""
        if self.as_json:
            self.json(value)
        else:
            self.line(text)

    def show_rows(self, columns: Sequence[Column], rows: Sequence[object], *, nothing: str) -> None:
        """Write rows: as JSON, or as a table."""
        if self.as_json:
            self.json(rows)
        else:
            self.table(columns, rows, nothing=nothing)

    def json_line(self, value: object) -> None:
        """Write a value as JSON in one line."""
        click.echo(_dumped(value))

    def line(self, text: object = "") -> None:
        """Write a line, or several."""
        click.echo("\n".join(one_line(line) for line in str(text).split("\n")))

    def table(
        self, columns: Sequence[Column], rows: Iterable[object], *, nothing: str = "", one_line_each: bool = False
    ) -> None:
        """Write rows below their headings, in a terminal up to its width.

        Args:
            columns: the columns; a column without any text is left out.
            rows: the rows.
            nothing: the line that is written if there are no rows.
            one_line_each: whether to cut cells that are too long for the terminal.
        """
        cells = [[one_line(str(column.text(row))) for column in columns] for row in rows]
        if not cells:
            click.echo(one_line(nothing))
            return
        used = [number for number in range(len(columns)) if any(row[number] for row in cells)]
        columns, cells = [columns[each] for each in used], [[row[each] for each in used] for row in cells]
        made, terminal = Table(columns, cells), self.terminal()
        width = terminal.columns if terminal else None
        lines = made.lines(width) if width is None or not one_line_each else ([line] for line in made.cut(width))
        for number, row in enumerate(lines):
            for line in row:
                click.echo(click.style(line, bold=True) if terminal and not number and not self._plain else line)

    def terminal(self) -> os.terminal_size | None:
        """Return the size of the terminal; None if stdout is no terminal."""
        return shutil.get_terminal_size() if sys.stdout.isatty() else None


def _dumped(value: object, indent: int | None = None) -> str:
    """Return a value as JSON with control characters escaped; other characters stay unescaped."""
    text = json.dumps(readable(value), indent=indent, ensure_ascii=False)
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)


def readable(value: Any) -> Any:
    """Return a value for JSON: dataclasses by the names of their attributes, times as ISO 8601."""
    if is_dataclass(value):
        # Fields that repr() leaves out are not part of the public output.
        return {each.name: readable(getattr(value, each.name)) for each in fields(value) if each.repr}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {name: readable(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [readable(each) for each in value]
    return value


def when(time: datetime | None) -> str:
    """Return a time as text in UTC; "" for None."""
    return "" if time is None else at(time.astimezone(timezone.utc))
