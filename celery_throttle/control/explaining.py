"""Explain a task: its state in the store, its estimated start, and how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_throttle.control.leases import with_lost_run
from celery_throttle.control.pace import estimated, pace_in
from celery_throttle.control.reader import MOST
from celery_throttle.store.explain import Explanation, dropped_before, explained

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_throttle.control.reader import Reader

__all__ = ["explain"]


def explain(readers: Sequence[Reader], task_id: str) -> Explanation:
    """Return the explanation of a task; ``readers``: one for each group of limits."""
    views = [(reader.explain(task_id), reader) for reader in readers]
    found = [(explained(task_id, view), view, reader) for view, reader in views]
    explanation, view, reader = next((each for each in found if each[0].state != "unknown"), found[0])
    if explanation.state == "unknown" or view.verdict:
        explanation = with_lost_run(explanation, [run for each in readers for run in each.lost_runs()])
    if explanation.state == "unknown":
        explanation = dropped_before(explanation, [one for each in readers for one in each.audit(None, MOST)])
    status = next((each for each in view.limits if each.bucket == explanation.bucket), None)
    if status is None:
        return explanation
    cost = next(need.permits for need in view.needs if need.bucket == status.bucket)
    return estimated(explanation, pace_in(reader, status, cost))
