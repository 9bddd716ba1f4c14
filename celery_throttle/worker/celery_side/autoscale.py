"""Tell Celery's autoscaler of parked tasks, in a worker with ``--autoscale``."""

from __future__ import annotations

from typing import Any

__all__ = ["Autoscaling"]


class Autoscaling:
    """Has Celery's autoscaler count parked tasks as it counts those from the broker.

    Args:
        worker: Celery's WorkController; its autoscaler may be made later.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def grow(self) -> None:
        """Add one process, up to the most that are allowed; if one is not enough, this is called again."""
        scaler = getattr(self._worker, "autoscaler", None)
        if scaler is None:
            return
        with scaler.mutex:
            if scaler.processes < scaler.max_concurrency:
                scaler.scale_up(1)
                scaler.pool.maintain_pool()

    def resumed(self, request: Any) -> None:
        """Report a resumed task as a received one: since Celery 5.7 a pool shrinks a while after the last of those."""
        received = getattr(getattr(self._worker, "autoscaler", None), "on_task_received", None)
        if received is not None:
            received(request)
