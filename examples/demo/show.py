"""Show the state as plain lines; ``screen`` shows it live on a terminal."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from examples.demo.state import State

PLAIN_EVERY = 1.0


class Show(Protocol):
    """Shows each state that it gets."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def show(self, state: State) -> None:
        """Show a state, or skip it if the last one is too recent."""


def choose(*, plain: bool) -> Show:
    """Return the live view if there is a terminal for it and ``rich`` is installed, else plain lines."""
    if plain or not sys.stdout.isatty() or os.environ.get("TERM") in {None, "", "dumb"}:
        return Lines(sys.stdout)
    try:
        from examples.demo.screen import Screen  # noqa: PLC0415 - needs rich, which is optional
    except ImportError:
        print("Plain lines, because the package rich is not installed.")
        return Lines(sys.stdout)
    return Screen()


class Silence:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def show(self, state: State) -> None:
        """See `Show`."""


class Lines:
    """Prints a line for each event, and a line with the figures each second, without escape codes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._events = 0
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stream.flush()

    def show(self, state: State) -> None:
        """See `Show`."""
        for at, text in state.events[self._events :]:
            self._print(at, text)
        self._events = len(state.events)
        if state.limit and state.elapsed >= self._next:
            self._next = state.elapsed + PLAIN_EVERY
            self._print(state.elapsed, _figures(state))

    def _print(self, at: float, text: str) -> None:
        print(f"{at:5.1f} s  {text}", file=self._stream, flush=True)


def _figures(state: State) -> str:
    orphaned = f" ({state.orphaned} by the killed worker)" if state.orphaned else ""
    parts = [
        f"permits {state.held}/{state.limit}{orphaned}",
        f"parked {state.parked}",
        f"done {state.done}/{state.tasks}",
        f"wait {state.wait_p50:.1f} s (max {state.wait_max:.1f})",
    ]
    for worker in state.workers:
        frames = " ".join(f"#{frame}" for frame, _ in worker.running)
        parts.append(f"{worker.name}: {frames or ('-' if worker.word == 'up' else worker.word)}")
    return " | ".join(parts)
