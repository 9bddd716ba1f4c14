"""Say at the worker's start which tasks have options that do nothing."""

from __future__ import annotations

import logging
from typing import Any

from celery import bootsteps

from celery_throttle.tasks.remarks import remarks

__all__ = ["RemarksStep"]

logger = logging.getLogger(__name__)


class RemarksStep(bootsteps.Step):
    """Stands in every worker whose process has the library, for tasks that it was forgotten for."""

    def include_if(self, worker: Any) -> bool:
        """Never: what there is to be said is said here."""
        for remark in remarks(worker.app):
            logger.warning("celery_throttle: %s", remark)
        return False
