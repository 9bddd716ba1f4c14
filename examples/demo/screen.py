"""The live view, with ``rich``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import RenderableType
    from typing_extensions import Self

    from examples.demo.state import State, WorkerState

EVENTS = 9
# The bars: as wide as fits beside their labels and figures.
WIDEST_BAR = 48
BESIDE_BAR = 45
REFRESH_EVERY = 0.1
STYLES = {"up": "green", "starting": "yellow", "killed": "bold red"}


class Screen:
    """Draws one picture and replaces it in place; the last one stays."""

    def __init__(self) -> None:
        self._console = Console()
        # No refresh thread: the loop that reads the state also draws it.
        self._live = Live(console=self._console, auto_refresh=False)
        self._next = 0.0
        self._last: State | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._last:
            self._draw(self._last)
        self._live.stop()

    def show(self, state: State) -> None:
        """See `Show`."""
        now = time.monotonic()
        self._last = state
        if now >= self._next:
            self._next = now + REFRESH_EVERY
            self._draw(state)

    def _draw(self, state: State) -> None:
        self._live.update(picture(state, self._console.width), refresh=True)


def picture(state: State, width: int) -> RenderableType:
    """Return the picture of a state, for a terminal of this width."""
    bar = max(8, min(WIDEST_BAR, width - BESIDE_BAR))
    return Padding(Group(_title(state), _figures(state, bar), _workers(state), _events(state)), (1, 1, 0, 1))


def _title(state: State) -> RenderableType:
    return Text.assemble(
        ("celery_throttle", "bold"),
        f"   {state.tasks} tasks, at most {state.limit or '-'} at once over all workers",
        (f"   {state.elapsed:.1f} s", "dim"),
        no_wrap=True,
        overflow="ellipsis",
    )


def _figures(state: State, bar: int) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(width=8)
    table.add_column(width=bar)
    table.add_column(no_wrap=True)
    table.add_row("permits", _bar(state.held, state.limit, "yellow"), _held(state))
    table.add_row("parked", _bar(state.parked, state.tasks, "blue"), f"{state.parked} in line")
    table.add_row("done", _bar(state.done, state.tasks, "green"), f"{state.done} of {state.tasks}")
    waits = f"wait      p50 {state.wait_p50:.1f} s   max {state.wait_max:.1f} s"
    return Padding(Group(table, waits), (1, 0))


def _held(state: State) -> Text:
    text = Text(f"{state.held} of {state.limit} held")
    if state.orphaned:
        text.append(f", {state.orphaned} by the killed worker", "bold red")
    return text


def _bar(value: int, total: int, style: str) -> ProgressBar:
    return ProgressBar(total=max(total, 1), completed=value, complete_style=style, finished_style=style)


def _workers(state: State) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("worker", width=8)
    table.add_column("pid", width=8)
    table.add_column("state", width=10)
    table.add_column("done", width=6)
    table.add_column("running now", no_wrap=True)
    for worker in state.workers:
        word = Text(worker.word, STYLES[worker.word])
        table.add_row(worker.name, str(worker.pid), word, str(worker.done), _running(worker))
    return table


def _running(worker: WorkerState) -> Text:
    return Text("  ").join(Text.assemble((f"#{frame}", "bold"), f" {age:.1f} s") for frame, age in worker.running)


def _events(state: State) -> RenderableType:
    lines = [
        Text.assemble((f"{at:5.1f} s  ", "dim"), text, no_wrap=True, overflow="ellipsis")
        for at, text in state.events[-EVENTS:]
    ]
    return Padding(Group(*lines), (1, 0))
