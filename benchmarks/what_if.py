"""The time that `celery throttle simulate` takes for one number, without a store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.figures import Figure
from celery_throttle.control.load import read_question
from celery_throttle.control.outcomes import compared
from celery_throttle.control.overrides import Numbers
from celery_throttle.store.limit_status import RateStatus

if TYPE_CHECKING:
    from benchmarks.site import Bench

__all__ = ["hour"]


def hour(bench: Bench) -> list[Figure]:
    """Simulate an hour with many arrivals."""
    count = 30_000 if bench.quick else 300_000
    numbers = {"50 permits": Numbers(50), "100 starts a second": Numbers(None, (RateStatus("100/s", 10),))}
    return [
        Figure(
            f"{count} tasks in an hour",
            f"processor time: {name}",
            tuple(_seconds(count, each, seed) for seed in range(bench.rounds)),
            "s",
            at_most=2,
        )
        for name, each in numbers.items()
    ]


def _seconds(count: int, numbers: Numbers, seed: int) -> float:
    question = read_question(arrivals=count / 3600, run_time=0.5, seed=seed)
    before = time.process_time()
    next(compared(question.load(None, 1), numbers))
    return time.process_time() - before
