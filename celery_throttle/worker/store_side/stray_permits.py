"""End permits of runs that are nowhere: a defect left them here, and their leases would be renewed for ever."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from celery_throttle.core.facts import Result
from celery_throttle.worker.user_code import safely

if TYPE_CHECKING:
    from collections.abc import Collection

    from celery_throttle.worker.runs import Permit, Run
    from celery_throttle.worker.store_side.calls import Calls

__all__ = ["end_strays"]

logger = logging.getLogger(__name__)


def end_strays(calls: Calls, known: Collection[Run], epoch: int) -> None:
    """End each permit that is held here by none of the known runs, and by none that goes back in line.

    Args:
        calls: to the group of the permits.
        known: the runs in the pool, and those with permits that wait here.
        epoch: the number of the present connection to the broker.
    """
    strays = [(nonce, permit) for nonce, permit in calls.held.items() if permit.run not in known]
    if strays:
        returning = calls.returning
        for nonce, permit in strays:
            if permit.run not in returning:
                safely(_end, calls, nonce, permit, epoch)


def _end(calls: Calls, nonce: str, permit: Permit, epoch: int) -> None:
    del calls.held[nonce]  # first: whatever follows, its lease is not renewed any more
    if (run := permit.run) is None:
        return
    permit.lapse()  # nor is it passed on
    logger.error(
        "celery_throttle: task %s[%s] is over, and its permit was still held here. It is free now. Please report this, "
        "with the errors before it in this log",
        run.request.name, run.id,
    )  # fmt: skip
    calls.outbox.settle(permit)
    calls.outbox.ended(run.delivery, run.facts(Result.NOTHING, began=True, epoch=epoch), run.needs.text)
