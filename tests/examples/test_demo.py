"""The demo: a cap over two workers holds, first come first served, though one of them is killed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from examples.demo.journal import Run
from examples.demo.summary import MOST_OUT_OF_TURN, summarize
from tests.examples.commands import Command

SMALLER = ("--tasks", "40")


def test_a_killed_worker_costs_no_task_and_no_permit(tmp_path: Path) -> None:
    with Command("demo", tmp_path, *SMALLER, progress=False) as command:
        summary = command.summary()
        assert command.progress() == ""  # JSON, and nothing else
        command.check_nothing_left()
    assert summary["tasks"] == 40
    assert summary["tasks_lost"] == 0
    assert 1 <= summary["most_running"] <= summary["limit"]
    assert summary["killed_worker_ran"] == summary["ran_again"] > 0
    assert 0 < summary["permits_back_after"] < 10
    assert summary["furthest_out_of_turn"] <= MOST_OUT_OF_TURN
    assert summary["ok"]


@pytest.mark.parametrize(("places", "ok"), [(0, True), (MOST_OUT_OF_TURN, True), (MOST_OUT_OF_TURN + 1, False)])
def test_it_fails_if_order_is_not_kept(places: int, ok: bool) -> None:
    published = {frame: float(frame) for frame in range(20)}
    order = [*range(1, places + 1), 0, *range(places + 1, 20)]  # the first starts so many places late
    runs = [Run(frame, "one", 100.0 + place, 100.5 + place) for place, frame in enumerate(order)]
    summary = summarize(runs, published, limit=6, kill=None, now=200.0)
    assert summary.furthest_out_of_turn == places
    assert summary.ok is ok


def test_nothing_is_left_when_it_is_interrupted(tmp_path: Path) -> None:
    """By Ctrl-C, after the kill."""
    with Command("demo", tmp_path, *SMALLER) as command:
        assert command.interrupt(signal.SIGINT, when="SIGKILL to worker") == 130, command.progress()
        command.check_nothing_left()
