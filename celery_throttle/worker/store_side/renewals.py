"""Build the calls that renew permits, and act on their answers: leases that were lost or put back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_throttle.core.policy import limits_text
from celery_throttle.store.portions import MOST_RENEWED, take_rows
from celery_throttle.store.reading import read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from celery_throttle.store.calls import Store
    from celery_throttle.store.exchange import Arrival
    from celery_throttle.store.scripts import Call
    from celery_throttle.worker.runs import Permit, Run

__all__ = ["Renewal", "renewals"]

logger = logging.getLogger(__name__)

_LOST, _RENEWED, _PUT_BACK, _LATER = range(4)
#: Below the number of every call, also of the calls of a worker that new data does not have.
_BEFORE_ALL = -1


class Renewal(NamedTuple):
    """One call that renews permits.

    Attributes:
        call: the call.
        birth: that of the data that the call is for.
        rows: each permit with its holder when the call was built.
    """

    call: Call
    birth: str
    rows: list[tuple[Permit, Arrival]]

    def judge(self, held: Mapping[str, Permit], lost: Callable[[Run, str], None], raw: Any) -> str:
        """Act on the reply of renew.lua; return the birth of the store's data.

        An error has no effect, nor has a reply about other data. ``held``: the permits that are held here now, by the
        nonces of their runs. ``lost``: called with a run whose lease is lost, and its needs; must not wait.
        """
        if isinstance(raw, Exception):
            return self.birth
        birth: str
        answers, birth = read(lambda parts: ([int(each) for each in parts[0]], parts[2].decode()), raw)
        if birth == self.birth:
            for (permit, holder), answer in zip(self.rows, answers, strict=True):
                run = permit.run
                if run is not None and held.get(run.nonce) is permit and permit.holder is holder:
                    try:
                        _act_on(permit, run, answer, lost)
                    except Exception:
                        logger.exception("celery_throttle: error after a renewal for task %s", run.request.id)
        return birth


def renewals(store: Store, worker: str, number: int, permits: Iterable[Permit], birth: str = "") -> Iterator[Renewal]:
    """Yield the calls that renew permits.

    ``number`` is the number of the worker's last call when the permits were listed, so no call up to it has ended one
    of them. But a call may already have given back the permits of runs that go back in line; these are never put back.
    ``birth`` is that of the store's data that the worker knew then; data that began later puts nothing back.
    """
    held = [permit for permit in permits if not permit.lapsed]
    for some, ended_by in (
        ([permit for permit in held if not permit.goes_back], number),
        ([permit for permit in held if permit.goes_back], _BEFORE_ALL),
    ):
        rows = [(permit, permit.holder) for permit in some]
        while rows:
            page = take_rows(rows, MOST_RENEWED)
            yield Renewal(store.renew(worker, ended_by, [holder for _, holder in page], birth=birth), birth, page)


def _act_on(permit: Permit, run: Run, answer: int, lost: Callable[[Run, str], None]) -> None:
    """Act on the answer about a permit that its holder still has here, so no call before the answer has ended it."""
    if answer == _PUT_BACK:
        logger.warning("celery_throttle: the store had lost the permit of task %s, put back", run.request.id)
    # A run that goes back has ended. The call that gives the store a new holder may not have arrived yet.
    was_lost, excused = permit.lost, permit.goes_back or permit.is_new
    permit.renewed(lost=answer in (_LOST, _LATER) and not excused)
    if permit.lost and not was_lost:
        _log_lost(permit.holder.needs, run)
        lost(run, permit.holder.needs)


def _log_lost(needs: str, run: Run) -> None:
    # Renewing goes on: if there is room again while the task runs, its permit is put back.
    limits = limits_text(needs)
    logger.warning(
        "lease_lost: task %s[%s] still runs, but its %s is gone",
        run.request.name,
        run.request.id,
        f"permit of limit {limits!r}" if limits else "identity lock",
        extra={"action": "lease_lost", "task_id": run.request.id, "task_name": run.request.name},
    )
