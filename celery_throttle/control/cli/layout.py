"""Lay out a table in a terminal; a word is never broken, so that a task id can be copied."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Column", "Table"]

_GAP = 2
#: The least width to which a column of text shrinks to stay beside the others.
_NARROW = 20
_CUT = "\u2026"


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        heading: the heading of the column.
        text: returns the cell of a row.
        right: whether the cells are aligned right, as numbers are.
        folds: whether the cells are text of several words, which may be wrapped.
    """

    heading: str
    text: Callable[[Any], object]
    right: bool = False
    folds: bool = False


class Table:
    """The heading and the cells of a table, each of one line.

    Args:
        columns: the columns.
        cells: the cells of each row.
    """

    def __init__(self, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
        self._columns = columns
        self._rows = [[column.heading for column in columns], *cells]
        self._natural = [max(len(row[number]) for row in self._rows) for number in range(len(columns))]

    def lines(self, width: int | None) -> Iterator[list[str]]:
        """Yield the lines of each row, the heading first; no line is wider than the terminal.

        If the columns do not fit beside each other, their text is folded. If that is not enough, a row has several
        lines of columns.

        Args:
            width: the width of the terminal, None: any.
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
        cells = [_wrapped(row[number], most) for number, most in zip(part, widths, strict=True)]
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


def _wrapped(text: str, most: int) -> list[str]:
    return [text] if len(text) <= most else wrap(text, most, break_on_hyphens=False)


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
