"""The demo as an animated SVG: its loop is short, and its boxes are the permits."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from examples.animation import LIGHT, LONGEST, Stage, animated
from examples.demo.journal import Run
from examples.demo.state import State, WorkerState
from examples.demo.summary import summarize

ONE = WorkerState("one", 11, "up", (), 0)
TWO = WorkerState("two", 22, "up", (), 0)
EMPTY = State(0.0, 6, 2, 0, 0, 0, (), (), 0, 0.0, 0.0, (ONE, TWO), ())
#: One run of six tasks: the worker `two` is killed while it runs #2, whose permit is back after three seconds.
RUN = [
    EMPTY,
    replace(
        EMPTY,
        elapsed=1.0,
        held=2,
        waiting=(3, 4),
        workers=(replace(ONE, running=((1, 0),)), replace(TWO, running=((2, 0),))),
    ),
    replace(
        EMPTY,
        elapsed=2.0,
        held=2,
        waiting=(4,),
        killed=(2,),
        workers=(replace(ONE, running=((3, 0),)), replace(TWO, word="killed")),
        orphaned=1,
    ),
    replace(
        EMPTY,
        elapsed=5.0,
        held=2,
        killed=(2,),
        workers=(replace(ONE, running=((4, 0), (2, 0))), replace(TWO, word="killed")),
    ),
]


def stage_of(states: list[State]) -> Stage:
    stage = Stage()
    for state in states:
        stage.show(state)
    stage.end(summarize([Run(1, "one", 1.0, 2.0)], {1: 0.5}, limit=2, kill=None, now=6.0))
    return stage


def boxes(stage: Stage) -> list[list[str]]:
    """The texts of the boxes of each scene."""
    return [
        [" ".join(re.findall(r">([^<]+)</text>", svg)) for part, svg in scene.parts.items() if part.startswith("box")]
        for scene in stage.scenes
    ]


def test_each_permit_is_a_box_that_a_killed_worker_keeps_until_its_lease_ends() -> None:
    assert boxes(stage_of(RUN))[:4] == [
        [],
        ["#1 worker one", "#2 worker two"],
        ["#3 worker one", "#2 killed"],
        ["#4 worker one", "#2 one, again"],
    ]


def test_more_tasks_than_permits_are_not_drawn() -> None:
    running = ((1, 0.0), (2, 0.0), (3, 0.0))
    with pytest.raises(IndexError):
        stage_of([EMPTY, replace(EMPTY, elapsed=1.0, held=2, workers=(replace(ONE, running=running), TWO))])


@pytest.mark.parametrize(("factor", "note"), [(1.0, None), (4.0, "1.8 times as fast")])
def test_a_loop_is_short_however_long_the_run_took(factor: float, note: str | None) -> None:
    svg = animated(stage_of([replace(each, elapsed=each.elapsed * factor) for each in RUN]), "code", LIGHT)
    (loop,) = re.findall(r"animation: ([\d.]+)s", svg)
    assert float(loop) <= LONGEST
    assert ("times as fast" in svg) is (note is not None)
    assert not note or note in svg
    for frames in re.findall(r"@keyframes k\d+ {(.*)}", svg):
        assert re.search(r"0\.00% { visibility: (hidden|visible) }", frames)
