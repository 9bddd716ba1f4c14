"""Lines that come many times a second, in a log that has each kind once a second."""

from __future__ import annotations

import logging
import re
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from celery_throttle.worker.reported.paced_log import PacedLog
from celery_throttle.worker.timekeeper import Timekeeper
from tests.support.timers import Timers


class Paced:
    """A paced log, with timers that the test rings, and its lines."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self.timers = timers = Timers()
        self.log = PacedLog(cast("Timekeeper", timers))
        self._caplog = caplog

    @property
    def lines(self) -> list[str]:
        """The new lines, each with its level."""
        lines = [f"{each.levelname} {each.getMessage()}" for each in self._caplog.records]
        self._caplog.clear()
        return lines


@pytest.fixture
def paced(caplog: pytest.LogCaptureFixture) -> Paced:
    return Paced(caplog)


def test_first_line_is_logged_at_once_and_the_last_with_a_count(paced: Paced) -> None:
    for number in range(5):
        paced.log.warning("lost: %d", number)
    assert paced.lines == ["WARNING lost: 0"]
    paced.timers.ring()
    assert paced.lines == ["WARNING lost: 4; and 3 more in the last second"]
    paced.log.warning("lost: %d", 5)
    assert paced.lines == []
    paced.timers.ring()
    assert paced.lines == ["WARNING lost: 5"]
    paced.timers.ring()
    assert (paced.timers.ring(), paced.lines) == (0, [])
    paced.log.warning("lost: %d", 6)
    assert paced.lines == ["WARNING lost: 6"]


def test_all_lines_are_there_for_debugging(paced: Paced, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for number in range(3):
        paced.log.warning("lost: %d", number)
    assert [line for line in paced.lines if line.startswith("DEBUG")] == [
        f"DEBUG lost: {number}" for number in range(3)
    ]


def test_lines_of_other_kinds_do_not_wait(paced: Paced) -> None:
    paced.log.warning("lost")
    paced.log.error("refused")
    assert paced.lines == ["WARNING lost", "ERROR refused"]


def test_last_line_of_a_kind_with_two_texts_is_the_present_state(paced: Paced) -> None:
    for _ in range(3):
        paced.log.error("away", kind="reach")
        paced.log.info("back", kind="reach")
    paced.timers.ring()
    assert paced.lines == ["ERROR away", "INFO back; and 4 more in the last second"]


def test_end_of_the_worker_logs_the_rest(paced: Paced) -> None:
    for _ in range(3):
        paced.log.warning("lost")
    paced.log.close()
    assert paced.lines == ["WARNING lost", "WARNING lost; and 1 more in the last second"]


def test_no_line_is_lost_among_threads(paced: Paced) -> None:
    def lose(_: int) -> None:
        for _ in range(200):
            paced.log.warning("lost")

    with ThreadPoolExecutor(2) as threads:
        ends = threads.map(lose, range(2))
        while not paced.timers.ring():
            pass
    list(ends)
    paced.log.close()
    counts = [int(count or 0) for count in re.findall(r"lost(?:; and (\d+) more)?", "\n".join(paced.lines))]
    assert len(counts) + sum(counts) == 400
