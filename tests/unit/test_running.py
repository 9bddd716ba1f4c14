"""Jobs given to the pool, and the consequences if one does not begin."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError
from kombu.message import Message as Delivered

from celery_throttle.core.facts import Facts, Message
from celery_throttle.core.policy import Needs
from celery_throttle.store.parcel import unpack
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
    """Slots of a pool that refuses every job."""

    passed_on = True

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def run(self, request: Any, died: Any) -> Any:
        raise self.error(request.id, died)

    def stopped(self, _: BaseException) -> bool:
        return False


def running_in(slots: Any) -> tuple[Running, Any]:
    """The runs of a worker with these slots, and its calls."""
    calls: Any = SimpleNamespace(outbox=Outbox(), tally=Tally(), held={}, freed=0)
    nothing: Any = SimpleNamespace(turning=False, epoch=0)
    groups = {"": calls}
    closed = ClosedBuckets()
    return Running(slots, nothing, nothing, groups, nothing, nothing, nothing, nothing, closed, nothing), calls


def test_revoked_task_refused_by_the_pool_has_not_started() -> None:
    running, calls = running_in(Slots(TaskRevokedError))
    run = Run(Request(), epoch=0, needs=Needs(("gpu",), "1:gpu"), nonce="w:1")
    running.hold_permit(run, Permit(run))
    running.execute(run)
    (over,) = calls.outbox.next_batch(0).exchange.changed
    assert over.facts == Facts(began=False, message=Message.NOBODY)
    assert not running.runs
    assert not calls.tally.take()


@pytest.mark.parametrize("begin_reported", [True, False])
def test_task_whose_pool_refuses_it_goes_back_with_its_message_if_the_store_dropped_that(begin_reported: bool) -> None:
    """The worker reports the begin before the body, which may block the main process; then the body never begins."""
    running, calls = running_in(Slots(RuntimeError))
    request: Any = Request()
    request.time_start, request.acknowledged = None, False
    request.message = Delivered(body="[[], {}, {}]", content_type="application/json", content_encoding="utf-8")
    run = Run(request, epoch=0, needs=Needs(("gpu",), "1:gpu"), nonce="w:1", stored=True)
    running.hold_permit(run, Permit(run))
    if begin_reported:
        running.report_begun(run)
    with pytest.raises(RuntimeError):
        running.execute(run)
    exchange = calls.outbox.next_batch(0).exchange
    assert [unpack(message, None, redelivered=False).body for message in exchange.messages()] == (
        ["[[], {}, {}]"] if begin_reported else []
    )
    assert [row.facts for row in exchange.changed if row.facts] == (
        [] if begin_reported else [Facts(began=False, message=Message.PLACE)]
    )
