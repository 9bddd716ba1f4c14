"""Write tables and JSON: tables as wide as the terminal, plain columns without one."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import fields, is_dataclass
from datetime import datetime, timezone
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from celery_throttle.core.wording import at, one_line, span

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from celery_throttle.store.needs import Need

__all__ = ["Column", "Output", "Table", "needs_text", "readable", "span", "when"]

_GAP = 2
#: The least width to which a column of text shrinks to stay beside the others.
_NARROW = 20
_CUT = "\u2026"


class Column(NamedTuple):
    """A column of a table; ``text`` returns the cell of a row.

    ``right``: whether the cells are aligned right, as numbers are. ``folds``: whether they are text of several words,
    which may be wrapped.
    """

    heading: str
    text: Callable[[Any], object]
    right: bool = False
    folds: bool = False


class Table:
    """The heading and the cells of a table, each of one line."""

    def __init__(self, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
        self._columns = columns
        self._rows = [[column.heading for column in columns], *cells]
        self._natural = [max(len(row[number]) for row in self._rows) for number in range(len(columns))]

    def lines(self, width: int | None) -> Iterator[list[str]]:
        """Yield the lines of each row, the heading first; no line is wider than the terminal (``width``, None: any).

        If the columns do not fit beside each other, their text is folded. If that is not enough, a row has several
        lines of columns.
        """
        parts = list(self._parts(width))
        for row in self._rows:
            yield [line for part, widths in parts for line in self._folded(row, part, widths)]

    def cut(self, width: int) -> Iterator[str]:
        """Yield one line for each row, the heading first; longer cells are cut."""
        widths = _shrunk(self._natural, range(len(self._natural)), width, narrow=1)
        for row in self._rows:
            cells = (_shortened(cell, most) for cell, most in zip(row, widths, strict=True))
            yield self._line(list(cells), range(len(widths)), widths)[:width]

    def _parts(self, width: int | None) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the columns of each line of columns, with their widths."""
        part: list[int] = []
        for number in range(len(self._columns)):
            if width is not None and part and self._least([*part, number]) > _room(part, width):
                yield part, self._widths(part, _room(part, width))
                part = []
            part.append(number)
        yield part, self._widths(part, None if width is None else _room(part, width))

    def _least(self, part: Sequence[int]) -> int:
        widths = (
            min(self._natural[each], _NARROW) if self._columns[each].folds else self._natural[each] for each in part
        )
        return _total(list(widths))

    def _widths(self, part: Sequence[int], width: int | None) -> list[int]:
        natural = [self._natural[each] for each in part]
        if width is None:
            return natural
        folding = [number for number, each in enumerate(part) if self._columns[each].folds]
        return _shrunk(_shrunk(natural, folding, width, _NARROW), range(len(part)), width, narrow=1)

    def _folded(self, row: Sequence[str], part: Sequence[int], widths: Sequence[int]) -> Iterator[str]:
        texts = ((row[number], most) for number, most in zip(part, widths, strict=True))
        cells = [[text] if len(text) <= most else wrap(text, most, break_on_hyphens=False) for text, most in texts]
        for each in range(max(map(len, cells))):
            line = self._line([lines[each] if each < len(lines) else "" for lines in cells], part, widths)
            yield line if part[0] == 0 else " " * _GAP + line

    def _line(self, cells: Sequence[str], part: Sequence[int], widths: Sequence[int]) -> str:
        sides = zip(cells, widths, part, strict=True)
        return (
            (" " * _GAP)
            .join(
                cell.rjust(width) if self._columns[number].right else cell.ljust(width) for cell, width, number in sides
            )
            .rstrip()
        )


def _room(part: Sequence[int], width: int) -> int:
    """Return the room of a line of these columns: all lines but the first are indented."""
    return width - _GAP if part and part[0] else width


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _shrunk(widths: Sequence[int], which: Sequence[int], width: int, narrow: int) -> list[int]:
    """Return widths that fit into ``width`` as far as possible, with these columns shrunk, the widest first."""
    found = list(widths)
    while which and _total(found) > width:
        widest = max(which, key=found.__getitem__)
        if found[widest] <= narrow:
            break
        found[widest] -= 1
    return found


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + _CUT


class Output:
    """The output of a command; ``plain``: without colours."""

    def __init__(self, *, as_json: bool, plain: bool = False) -> None:
        self.as_json = as_json
        self._plain = plain

    def json(self, value: object, indent: int | None = 2) -> None:
        """Write a value as indented JSON; None: in one line."""
        click.echo(_dumped(value, indent))

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

    def line(self, text: object = "") -> None:
        """Write a line, or several."""
        click.echo("\n".join(one_line(line) for line in str(text).split("\n")))

    def table(
        self, columns: Sequence[Column], rows: Iterable[object], *, nothing: str = "", one_line_each: bool = False
    ) -> None:
        """Write rows below their headings, in a terminal up to its width; a column without any text is left out.

        ``nothing``: the line that is written if there are no rows. ``one_line_each``: whether to cut cells that are too
        long for the terminal.
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


def _dumped(value: object, indent: int | None) -> str:
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


def needs_text(needs: Iterable[Need]) -> str:
    """Return the permits of a task for a cell: ``api, 2 x gpu[a7]``."""
    texts = (f"{need.permits} x {need.bucket}" if need.permits > 1 else str(need.bucket) for need in needs)
    return ", ".join(texts) or "no permit"
