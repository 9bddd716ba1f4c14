"""Prints at the end the requests that its worker left to the garbage collector, which does not run until then."""

from __future__ import annotations

import gc
import logging
from typing import Any

from celery.signals import worker_ready, worker_shutting_down
from celery.worker.request import Request

from tests.support.apps.features import app, one, plain, reject_late, retry

__all__ = ["app", "one", "plain", "reject_late", "retry"]

logger = logging.getLogger(__name__)


@worker_ready.connect
def _begin(**_: Any) -> None:
    gc.collect()
    gc.disable()


@worker_shutting_down.connect
def _end(**_: Any) -> None:
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    left = sorted(each.name for each in gc.garbage if isinstance(each, Request))
    logger.warning("left to the collector: %s", left)
