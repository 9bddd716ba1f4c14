"""Find the row for which the store refuses a call: halve the call until the row is alone.

A script that fails on a row has no effect on any other row, and it would fail again. A refusal for the state of the
server (no memory, a replica, no rights) is none of this.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from celery_throttle.worker.store_side.outbox import Batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.worker.runs import Run

__all__ = ["Sifting", "is_about_content"]

#: The codes of refusals for the state of a server, which may be anywhere in an error of a script.
_STATES = re.compile(
    r"\b(ASK|BUSY|CLUSTERDOWN|CROSSSLOT|LOADING|MASTERDOWN|MISCONF|MOVED|NOAUTH|NOPERM|NOREPLICAS|NOSCRIPT|OOM|READONLY|"
    r"TRYAGAIN|UNKILLABLE|WRONGTYPE)\b"
)


def is_about_content(error: Exception) -> bool:
    """Return whether the store may refuse a call for a value in it: an error of Lua, and no state of the server."""
    text = str(error)
    return type(error) is ResponseError and "script" in text and not _STATES.search(text)


class Sifting:
    """Keeps the pieces of refused calls, which are sent before all other rows, one piece a call.

    Attributes:
        pending: whether there is a piece to send.
    """

    def __init__(self) -> None:
        self._pieces: deque[Batch] = deque()
        self._suspect: tuple[Batch, Exception] | None = None
        self.pending = False

    @property
    def arrived(self) -> list[Run]:
        """The runs in all pieces."""
        suspect = [self._suspect[0]] if self._suspect is not None else []
        return [run for piece in (*suspect, *self._pieces) for run in piece.arrived]

    def next(self) -> Batch:
        """Return the next piece that is pending.

        While a row is suspected that is a call without rows. If the store refuses this, too, the row is not the reason.
        """
        if self._suspect is not None:
            return Batch.empty()
        piece = self._pieces.popleft()
        self.pending = bool(self._pieces)
        return piece

    def refused(self, batch: Batch, error: Exception) -> bool:
        """Take the rows of a refused call; return False, and take none, if they are not the reason."""
        if self._suspect is not None:
            self._pieces.appendleft(self._suspect[0])
            self._suspect, self.pending = None, True
            return False
        if not batch.size or not is_about_content(error):
            return False
        if batch.size == 1:
            self._suspect = batch, error
        else:
            self._pieces.extendleft(reversed(batch.halves()))
        self.pending = True
        return True

    def accepted(self) -> tuple[Batch, Exception] | None:
        """Return the row that the store refuses, and its error, if the call that was accepted proves that."""
        found, self._suspect, self.pending = self._suspect, None, bool(self._pieces)
        return found

    def unwritten(
        self, batch: Batch, write: Callable[[Batch], object], blame: Callable[[Batch, Exception], None]
    ) -> None:
        """Keep each row of a call that cannot be written, by itself, and blame the rows that fail."""
        for row in batch.rows():
            try:
                write(row)
            except Exception as error:  # noqa: BLE001 - no row is known that raises
                blame(row, error)
            else:
                self._pieces.append(row)
        self.pending = bool(self._pieces)
