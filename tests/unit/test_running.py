"""Jobs given to the pool, and the consequences if one does not begin."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from celery.exceptions import TaskRevokedError

from celery_throttle.core.facts import Facts, Message
from celery_throttle.core.policy import Needs
from celery_throttle.worker.running import Running
from celery_throttle.worker.runs import Permit, Run
from celery_throttle.worker.store_side.closed_buckets import ClosedBuckets
from celery_throttle.worker.store_side.outbox import Outbox
from celery_throttle.worker.store_side.tally import Tally


class Request:
    """One that is revoked between the store's word and the pool."""

    id, acknowledged = "a", True
    on_success = on_failure = on_timeout = reject = lambda *args: None

    def __init__(self) -> None:
        self.request_dict: dict[str, Any] = {}
        self.message = SimpleNamespace(acknowledged=True)


class Slots:
    passed_on = True

    def run(self, request: Any, died: Any) -> Any:
        raise TaskRevokedError(request.id, died)


def test_revoked_task_refused_by_the_pool_has_not_started() -> None:
    calls = SimpleNamespace(outbox=Outbox(), tally=Tally(), held={}, freed=0)
    nothing: Any = SimpleNamespace(turning=False, epoch=0)
    slots: Any = Slots()
    closed = ClosedBuckets()
    groups: Any = {"": calls}
    running = Running(slots, nothing, nothing, groups, nothing, nothing, nothing, nothing, closed, nothing)
    run = Run(Request(), epoch=0, needs=Needs(("gpu",), "1:gpu"), nonce="w:1")
    running.hold_permit(run, Permit(run))
    running.execute(run)
    (over,) = calls.outbox.next_batch(0).exchange.ended
    assert over.facts == Facts(began=False, message=Message.NOBODY)
    assert not running.runs
    assert not calls.tally.take()
