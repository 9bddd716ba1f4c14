"""A run of the demo as an animated SVG: the permits, the line, and the worker that is killed.

An SVG is sharp at any size. CSS moves it, which browsers also follow in an ``<img>``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from examples.demo.state import State
    from examples.demo.summary import Summary

__all__ = ["DARK", "LIGHT", "Stage", "animated"]

#: Seconds of the loop at most, of the scene before the first task, and of the last scene.
LONGEST, EMPTY, LAST = 12.0, 1.0, 2.5
WIDTH, HEIGHT, MARGIN = 600, 300, 16
#: From one box to the next, from one number in line to the next, and how many have room.
BOX, BOXES, CHIP, CHIPS = 96, 6, 52, 10
#: A lower speed is not worth a note.
FASTER = 1.05
LIGHT = {
    "back": "#fff",
    "rule": "#c9ced4",
    "text": "#1c1f23",
    "quiet": "#57606a",
    "one": "#0b57b0",
    "two": "#7a3fa0",
    "three": "#2f7d4f",
    "lost": "#b3261e",
}
DARK = {
    "back": "#0d1117",
    "rule": "#3d444d",
    "text": "#e6e7e9",
    "quiet": "#a3a9b1",
    "one": "#8fbdf5",
    "two": "#d2a8ff",
    "three": "#6fcf97",
    "lost": "#ff9088",
}
STYLE = """
text { font: 15px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--text) }
.quiet { fill: var(--quiet) } .on { fill: var(--back) } .big { font-size: 17px; font-weight: 600 }
.one { fill: var(--one) } .two { fill: var(--two) } .three { fill: var(--three) } .lost { fill: var(--lost) }
.number { font-size: 22px; font-weight: 600 } .small { font-size: 12px } .code { font-family: monospace }
.middle { text-anchor: middle } .right { text-anchor: end }
.page { fill: var(--back); stroke: var(--rule) } .chip { fill: none; stroke: var(--rule) }
.dead { fill: none; stroke: var(--lost); stroke-width: 2; stroke-dasharray: 5 4 }
.now { visibility: hidden; animation: LOOPs step-end infinite } .still { visibility: visible }
@media (prefers-reduced-motion: reduce) { .now { animation: none } }
"""


class Scene(NamedTuple):
    """What is drawn from one moment on: the SVG of each part."""

    at: float
    parts: dict[str, str]


class Box(NamedTuple):
    """The task that has a permit."""

    frame: int
    worker: str


@dataclass
class Stage:
    """Turns the states of a run into scenes. Each permit is a box, which keeps its task until the task ends."""

    scenes: list[Scene] = field(default_factory=list)
    #: The scene that stands for all where nothing moves.
    still: int = 0
    _boxes: list[Box | None] = field(default_factory=list)
    #: Boxes with permits of the killed worker.
    _lost: list[int] = field(default_factory=list)
    _arrived: bool = False
    _killed_at: float | None = None
    _back_after: float | None = None
    _last: State | None = None

    def show(self, state: State) -> None:
        """Add the scene of a state, from the moment on that the workers are up."""
        if not (self.scenes or (state.limit and all(worker.word == "up" for worker in state.workers))):
            return
        self._last = state
        self._boxes = self._boxes or [None] * state.limit
        self._see_kill(state)
        self._fill(_running(state))
        if state.waiting and not self._arrived:
            self._arrived = True
            self.scenes = [each._replace(at=state.elapsed - EMPTY) for each in self.scenes[-1:]]
        self._add(state, *self._caption(state))

    def end(self, summary: Summary) -> None:
        """Add the last scene."""
        if self._last is None:
            raise RuntimeError("The demo showed no state with a limit.")
        lost = summary.tasks_lost or "none"
        self._add(
            self._last,
            _text(f"{self._last.done} of {summary.tasks} tasks done, {lost} lost.", "big"),
            _text(f"Never more than {summary.most_running} ran at once.", "big"),
        )

    def _see_kill(self, state: State) -> None:
        if state.killed and self._killed_at is None:
            self._killed_at = state.elapsed
            self._fill(dict.fromkeys(state.killed, "") | _running(state))
            self._lost = [i for i, box in enumerate(self._boxes) if box and box.frame in state.killed]
        if state.orphaned and not self.still:
            self.still = len(self.scenes)
        if self.still:  # from here on the states count the permits of the killed worker
            for i in self._lost[state.orphaned :]:
                self._boxes[i] = None
            del self._lost[state.orphaned :]
            if not state.orphaned and self._back_after is None:
                self._back_after = state.elapsed - (self._killed_at or 0)

    def _fill(self, running: dict[int, str]) -> None:
        """Empty the boxes of tasks that have ended, and put each task that has started into a free one."""
        for i, box in enumerate(self._boxes):
            if box and i not in self._lost and box.frame not in running:
                self._boxes[i] = None
        there = {box.frame for i, box in enumerate(self._boxes) if box and i not in self._lost}
        for frame, worker in running.items():
            if frame not in there:
                # If none is free, the permit of a lost task has passed to this one, which the state does not show yet.
                free = self._boxes.index(None) if None in self._boxes else self._lost.pop()
                self._boxes[free] = Box(frame, worker)

    def _caption(self, state: State) -> tuple[str, ...]:
        if self._back_after is not None:
            return (
                _text(f"After {self._back_after:.1f} s its permits pass to the next in line,", "big"),
                _text("and its own tasks run again.", "big"),
            )
        if self._killed_at is not None:
            pid = next(worker.pid for worker in state.workers if worker.word == "killed")
            return (
                _text(f"$ kill -9 {pid}", "code big lost"),
                _text("Its permits stay taken until their lease ends: 3 s here.", "big"),
            )
        if state.waiting or state.done:
            return (_text(f"{state.tasks} tasks: {state.limit} run, the others wait in line.", "big"),)
        return (_text("Two workers, and one limit for both.", "big"),)

    def _add(self, state: State, *caption: str) -> None:
        boxes = {f"box {i}": self._box(i, box, state.killed) for i, box in enumerate(self._boxes) if box}
        workers = {f"worker {i}": text for i, text in enumerate(_workers(state))}
        held = _at(MARGIN, 58, _text(f"permits: {state.held} of {state.limit} held", "quiet"))
        below = "".join(_at(MARGIN, 258 + 24 * i, text) for i, text in enumerate(caption))
        parts = {"held": held, **boxes, "line": _line(state.waiting), **workers, "caption": below}
        self.scenes.append(Scene(state.elapsed, parts))

    def _box(self, i: int, box: Box, killed: Sequence[int]) -> str:
        x, dead = MARGIN + i * BOX, i in self._lost
        rect = f'<rect x="{x + 1}" y="67" width="86" height="56" rx="6" class="{"dead" if dead else box.worker}"/>'
        on = f"{box.worker}, again" if box.frame in killed else f"worker {box.worker}"
        style, below = ("lost", "killed") if dead else ("on", on)
        number = _at(x + 44, 94, _text(f"#{box.frame}", f"number middle {style}"))
        return rect + number + _at(x + 44, 114, _text(below, f"small middle {style}"))


def _running(state: State) -> dict[int, str]:
    return {frame: worker.name for worker in state.workers for frame, _ in worker.running}


def _line(waiting: Sequence[int]) -> str:
    title = f"in line, first come, first served: {len(waiting)}"
    chips = "".join(
        f'<rect x="{MARGIN + i * CHIP}" y="158" width="46" height="26" rx="13" class="chip"/>'
        + _at(MARGIN + i * CHIP + 23, 176, _text(f"#{frame}", "middle"))
        for i, frame in enumerate(waiting[:CHIPS])
    )
    more = _text(f"+{len(waiting) - CHIPS}", "quiet") if len(waiting) > CHIPS else ""
    return _at(MARGIN, 150, _text(title, "quiet")) + chips + _at(MARGIN + CHIPS * CHIP, 176, more)


def _workers(state: State) -> Iterator[str]:
    for i, worker in enumerate(state.workers):
        x, word = MARGIN + i * 190, worker.word
        style = "lost" if word == "killed" else worker.name
        name = f"worker {worker.name}: {f'{worker.done} done' if word == 'up' else word}"
        mark = f'<rect x="{x}" y="204" width="14" height="14" rx="3" class="{style}"/>'
        yield mark + _at(x + 21, 216, _text(name, "lost" if word == "killed" else ""))


def _text(text: str, style: str) -> str:
    return f'<text class="{style}">{escape(text, quote=False)}</text>'


def _at(x: int, y: int, text: str) -> str:
    return text.replace("<text ", f'<text x="{x}" y="{y}" ')


def animated(stage: Stage, code: str, colours: dict[str, str]) -> str:
    """Return the scenes as an SVG that repeats; a run that is too long for the loop is shown faster."""
    first, last = stage.scenes[0].at, stage.scenes[-1].at
    faster = max(1.0, (last - first) / (LONGEST - LAST))
    loop = (last - first) / faster + LAST
    rules: list[str] = []
    drawn: list[str] = []
    for since, until, svg, still in _spans(stage):
        begins, ends = ((at - first) / faster / loop * 100 for at in (since, until))
        rules.append(_rule(len(rules), begins, ends))
        drawn.append(f'<g class="now{" still" * still}" style="animation-name: k{len(drawn)}">{svg}</g>')
    pace = _at(WIDTH - MARGIN, 58, _text(f"{faster:.1f} times as fast", "quiet right")) if faster > FASTER else ""
    variables = "; ".join(f"--{name}: {value}" for name, value in colours.items())
    style = f"svg {{ {variables} }}{STYLE.replace('LOOP', f'{loop:.2f}')}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}">',
            f"<style>{style}{chr(10).join(rules)}</style>",
            f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8" class="page"/>',
            _at(MARGIN, 30, _text(code, "code")) + pace,
            *(
                f'<rect x="{MARGIN + i * BOX + 1}" y="67" width="86" height="56" rx="6" class="chip"/>'
                for i in range(BOXES)
            ),
            *drawn,
            "</svg>\n",
        ]
    )


def _rule(number: int, begins: float, ends: float) -> str:
    frames = {0.0: "hidden", begins: "visible", min(ends, 100.0): "hidden"}
    return f"@keyframes k{number} {{ {' '.join(f'{at:.2f}% {{ visibility: {see} }}' for at, see in frames.items())} }}"


def _spans(stage: Stage) -> Iterator[tuple[float, float, str, bool]]:
    """Yield the SVG of each part while it stays the same: since when, until when, and whether it is in the still."""
    scenes = stage.scenes
    for part in dict.fromkeys(part for scene in scenes for part in scene.parts):
        begin = 0
        for i in range(1, len(scenes) + 1):
            svg = scenes[begin].parts.get(part)
            if i == len(scenes) or scenes[i].parts.get(part) != svg:
                if svg:
                    until = scenes[i].at if i < len(scenes) else math.inf
                    yield scenes[begin].at, until, svg, begin <= stage.still < i
                begin = i
