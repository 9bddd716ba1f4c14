"""The demo: a cap over two workers holds though one of them is killed."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.examples.commands import Command

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.worker

SMALLER = ("--tasks", "40")


def test_a_killed_worker_costs_no_task_and_no_permit(tmp_path: Path) -> None:
    with Command("demo", tmp_path, *SMALLER) as command:
        summary = command.summary()
        command.check_nothing_left()
    assert summary["tasks"] == 40
    assert summary["tasks_lost"] == 0
    assert 1 <= summary["most_running"] <= summary["limit"]
    assert summary["killed_worker_ran"] == summary["ran_again"] > 0
    assert 0 < summary["permits_back_after"] < 10


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_nothing_is_left_when_it_is_interrupted(tmp_path: Path, number: int, status: int) -> None:
    """After the kill."""
    with Command("demo", tmp_path, *SMALLER) as command:
        assert command.interrupt(number, when="SIGKILL to worker") == status, command.progress()
        command.check_nothing_left()
