"""Log at the worker's start which tasks have options without effect."""

from __future__ import annotations

import logging
from typing import Any

from celery import bootsteps

from celery_throttle.tasks.remarks import remarks

__all__ = ["RemarksStep"]

logger = logging.getLogger(__name__)


class RemarksStep(bootsteps.Step):
    """Logs warnings in every worker that imports the library, also without a throttled task."""

    def include_if(self, worker: Any) -> bool:
        """Log the warnings; the step itself is never included."""
        for remark in remarks(worker.app, worker.pool_cls):
            logger.warning("celery_throttle: %s", remark)
        return False
