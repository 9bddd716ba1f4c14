"""Time that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Timers"]


class Timers:
    """Replaces the timekeeper and the loop: the test runs the due calls."""

    def __init__(self) -> None:
        self._due: list[Callable[[], None]] = []
        self.pauses: list[float] = []

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        assert seconds > 0
        self.pauses.append(seconds)
        self._due.append(function)

    def post(self, function: Callable[..., None], *args: Any) -> None:
        function(*args)

    def ring_one(self) -> None:
        """Do the first due call."""
        self._due.pop(0)()

    def ring(self) -> int:
        """Do the due calls; return their number."""
        due, self._due = self._due, []
        for function in due:
            function()
        return len(due)
