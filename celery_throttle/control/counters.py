"""Metrics of the history: counters and wait times by limit, and the errors of the store.

A counter restarts at 0 after two days without use of its limit, after a loss of the store's data, and after some
billions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_throttle.control.exposition import Sample
from celery_throttle.control.limit_history import histories_of
from celery_throttle.core.history import TOTALS, WAITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.control.reader import Reader
    from celery_throttle.store.history import Period

__all__ = ["COUNTERS", "ERRORS", "WAIT", "counted"]

#: By limit, with all its keys.
COUNTERS = {
    "started_total": "Runs that started.",
    "ended_total": "Runs that ended.",
    "failed_total": "Runs that failed.",
    "run_seconds_total": "How long they ran.",
    "parked_total": "Tasks that were parked.",
    "sent_back_total": "Runs that raised RateLimited.",
    "refused_total": "Tasks that were not parked, because max_parked tasks were parked already.",
    "duplicates_total": "Tasks that did not run, because another call of them had the identity lock.",
    "reclaimed_total": "Permits of lost workers that were reclaimed.",
}
#: By group.
ERRORS = {
    "store_errors_total": "How often workers lost the store, or it refused a call. Reported once they reach it.",
}
WAIT = {"wait_seconds": "How long runs waited in line before they started; 0: not at all."}
#: Each second bound of WAITS: a bound is four times the one before, from 20 ms to 1.5 h.
_BOUNDS = range(0, len(WAITS), 2)


def counted(reader: Reader, limits: list[str]) -> Iterator[tuple[str, Sample]]:
    """Yield the samples of limits, each with the name of its metric."""
    for history in histories_of(reader, limits, TOTALS):
        labels = {"group": reader.group, "limit": history.limit}
        total = history.total
        for name in COUNTERS:
            yield name, Sample(labels, _count(total, name))
        for sample in _waits(total, labels):
            yield "wait_seconds", sample


def _count(total: Period, name: str) -> float:
    what = name.removesuffix("_total")
    return float(total.run_time if what == "run_seconds" else getattr(total, what))


def _waits(total: Period, labels: dict[str, str]) -> Iterator[Sample]:
    reached = {f"{WAITS[number]:g}": total.at_once + sum(total.waited[: number + 1]) for number in _BOUNDS}
    for bound, count in {"0": total.at_once, **reached, "+Inf": total.started}.items():
        yield Sample({"group": labels["group"], "le": bound, "limit": labels["limit"]}, count, "_bucket")
    yield Sample(labels, total.started, "_count")
    yield Sample(labels, total.wait_time, "_sum")
