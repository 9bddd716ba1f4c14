"""Add processes for parked tasks, in a worker with ``--autoscale``."""

from __future__ import annotations

from typing import Any

__all__ = ["Growth"]


class Growth:
    """Has Celery's autoscaler add processes for parked tasks, because it counts only reserved requests.

    The autoscaler removes idle processes as before.

    Args:
        worker: Celery's WorkController; its autoscaler may be made later.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def __call__(self) -> None:
        """Add one process, up to the most that are allowed; if one is not enough, this is called again."""
        scaler = getattr(self._worker, "autoscaler", None)
        if scaler is None:
            return
        with scaler.mutex:
            if scaler.processes < scaler.max_concurrency:
                scaler.scale_up(1)
                scaler.pool.maintain_pool()
