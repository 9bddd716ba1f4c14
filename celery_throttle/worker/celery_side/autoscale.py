"""More processes for parked tasks, in a worker with ``--autoscale``."""

from __future__ import annotations

from typing import Any

__all__ = ["Growth"]


class Growth:
    """Has Celery's autoscaler add a process where it would not: it counts what is reserved, and parked tasks are not.

    It takes away what is idle as ever.

    Args:
        worker: Celery's WorkController; the autoscaler may be made after us.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def __call__(self) -> None:
        """Add one, unless there are as many as may be: if that is not enough, this is called again."""
        scaler = getattr(self._worker, "autoscaler", None)
        if scaler is None:
            return
        with scaler.mutex:
            if scaler.processes < scaler.max_concurrency:
                scaler.scale_up(1)
                scaler.pool.maintain_pool()
