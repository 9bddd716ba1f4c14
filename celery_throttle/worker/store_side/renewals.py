"""Build the calls that renew permits, and act on their answers: leases that were lost or put back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery_throttle.core.policy import limits_text
from celery_throttle.store.portions import MOST_RENEWED, take_rows
from celery_throttle.store.reading import read
from celery_throttle.worker.reported.signals_and_events import report_lost

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from celery_throttle.store.calls import Store
    from celery_throttle.store.scripts import Call
    from celery_throttle.worker.runs import Permit

__all__ = ["judge", "judge_reply", "renewals"]

logger = logging.getLogger(__name__)

_LOST, _PUT_BACK = 0, 2
#: Below the number of every call, also of the calls of a worker that new data does not have.
_BEFORE_ALL = -1


def renewals(
    store: Store, worker: str, number: int, permits: Iterable[Permit], birth: str = ""
) -> Iterator[tuple[list[Permit], Call]]:
    """Yield the calls that renew permits, each call with its permits.

    ``number`` is the number of the worker's last call when the permits were listed, so no call up to it has ended one
    of them. But a call may already have given back the permits of runs that go back in line; these are never put back.
    ``birth`` is that of the store's data that the worker knew then; data that began later puts nothing back.
    """
    held = list(permits)
    for rows, ended_by in (
        ([permit for permit in held if not permit.goes_back], number),
        ([permit for permit in held if permit.goes_back], _BEFORE_ALL),
    ):
        while rows:
            some = take_rows(rows, MOST_RENEWED)
            yield some, store.renew(worker, ended_by, [permit.holder for permit in some], birth=birth)


def judge(permits: Sequence[Permit], answers: Iterable[int]) -> None:
    """Act on the answers of renew.lua."""
    for permit, answer in zip(permits, answers, strict=True):
        _act_on(permit, answer)


def judge_reply(permits: Sequence[Permit], raw: Any) -> None:
    """Act on a reply of renew.lua, unless it is an error."""
    if not isinstance(raw, Exception):
        judge(permits, read(lambda answers: [int(each) for each in answers[0]], raw))


def _act_on(permit: Permit, answer: int) -> None:
    holder, run = permit.holder, permit.run
    if run is None:
        return
    if answer == _LOST and not permit.lost:
        # Renewing goes on: if there is room again while the task runs, its permit is put back.
        permit.renewed(lost=True)
        limits = limits_text(holder.needs)
        logger.warning(
            "lease_lost: task %s[%s] still runs, but its %s is gone",
            run.request.name,
            run.request.id,
            f"permit of limit {limits!r}" if limits else "identity lock",
            extra={"action": "lease_lost", "task_id": run.request.id, "task_name": run.request.name},
        )
        report_lost(run, holder.needs)
    elif answer == _PUT_BACK:
        permit.renewed(lost=False)
        logger.warning("celery_throttle: the store had lost the permit of task %s, put back", run.request.id)
