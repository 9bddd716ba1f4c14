"""The gate's record of one delivery: its facts, its message at the broker, and a pool that refuses it."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError
from kombu.message import Message as Delivered

from celery_throttle.core.contents import attempt_of
from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.store.exchange import DeliveryChange
from celery_throttle.store.parcel import unpack
from celery_throttle.worker.acknowledging import Acknowledging
from celery_throttle.worker.celery_side.broker import Broker
from celery_throttle.worker.celery_side.failing import fail
from celery_throttle.worker.held_back.held_back import HeldBack
from celery_throttle.worker.running import Running
from celery_throttle.worker.runs import Content, Permit, Run, State
from celery_throttle.worker.store_side.closed_buckets import ClosedBuckets
from celery_throttle.worker.store_side.outbox import Outbox
from celery_throttle.worker.store_side.tally import Tally
from tests.unit.runs import GPU, request_of, run_of


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("gone", "epoch", "result", "where"),
    [
        # The connection broke without notice, or the hub's next turn acknowledges it.
        pytest.param(True, 1, Result.SUCCESS, Message.NOBODY, id="not acknowledged"),
        pytest.param(False, 1, Result.SUCCESS, Message.NOBODY, id="acknowledged"),
        # The broker may have put it back before the acknowledgement arrived.
        pytest.param(False, 2, Result.SUCCESS, Message.BROKER, id="acknowledged on a connection that is gone"),
        pytest.param(False, 2, Result.NOTHING, Message.NOBODY, id="the same, without a result"),
    ],
)
def test_where_the_message_is_after_a_run(gone: bool, epoch: int, result: Result, where: Message, late: bool) -> None:
    def basic_ack(tag: str, multiple: bool = False) -> None:
        if gone:
            raise ConnectionError(tag, multiple)

    channel = SimpleNamespace(basic_ack=basic_ack, no_ack_consumers=set())
    message = Delivered(channel=channel, delivery_tag="1", body="")
    request = request_of(acknowledged=True, task=SimpleNamespace(acks_late=late), delivery_info=None)
    request.message, request.acknowledged = message, True
    message.ack_log_error(SimpleNamespace(critical=lambda *_, **__: None), (ConnectionError,))
    run = Run(request, Content("t"), epoch=1)
    assert run.facts(result, began=True, epoch=epoch).message is where
    assert run.being_acknowledged is gone


def test_an_attempt_is_later_than_those_before_it() -> None:
    """A retry is later, and a message by `replace` too, which counts its retries anew. Another delivery is not."""

    def attempt(retries: object = 0, replaced_task_nesting: object = None) -> int:
        return attempt_of(retries, replaced_task_nesting)

    assert attempt() == attempt(retries=None, replaced_task_nesting=0) == 0
    assert attempt(retries=2) == attempt(retries=2, replaced_task_nesting=None) > attempt(retries=1)
    assert attempt(replaced_task_nesting=1) > attempt(retries=1000)
    assert attempt(replaced_task_nesting=1, retries=1) > attempt(replaced_task_nesting=1)


# -- messages that the broker keeps although they are not needed -------------------------------------------------------


class Worker:
    """The acknowledging part of a worker, in the second epoch of its broker."""

    def __init__(self) -> None:
        self.outbox, self.broker, self.posted = Outbox(), Broker(""), list[Any]()
        self.broker.disconnected()
        calls: Any = SimpleNamespace(outbox=self.outbox)
        running: Any = SimpleNamespace(forget=lambda request: None)
        loop: Any = SimpleNamespace(post=lambda function, *args: self.posted.append(partial(function, *args)))
        self.held = HeldBack(loop, loop, lambda more: None)
        self.acknowledging = Acknowledging(running, self.broker, loop, {"": calls}, self.held)

    def lose_broker(self) -> None:
        self.broker.disconnected()
        self.outbox.disconnected()
        self.held.forget()

    def sent(self) -> list[DeliveryChange]:
        return self.outbox.next_batch(0).exchange.changed


@pytest.mark.parametrize("keeps", [False, True])
def test_unacknowledged_finished_run_is_sent_with_the_next_call(keeps: bool) -> None:
    """The connection to the broker is gone: an unreported message counts as acknowledged."""
    worker, run = Worker(), run_of("t", acknowledged=False, epoch=0, keeps=keeps)
    worker.acknowledging.has_run(run)
    assert worker.sent() == [DeliveryChange("unacked", *run.delivery)]


@pytest.mark.parametrize("lost", [False, True])
def test_acknowledgement_on_a_lost_connection_does_not_count(lost: bool) -> None:
    """The broker may have put it back before: Celery acknowledges late, and on a channel that is closed by then."""
    worker, run = Worker(), run_of("t", acknowledged=False)
    worker.acknowledging.parked(run)
    if lost:
        worker.lose_broker()
    assert worker.sent() == ([DeliveryChange("unacked", *run.delivery)] if lost else [])
    assert worker.sent() == []


def test_safe_acknowledgement_on_a_lost_connection_has_no_effect() -> None:
    """As it does already: it was parked so."""
    worker, run = Worker(), run_of("t", acknowledged=False, keeps=True)
    worker.acknowledging.parked(run)
    assert worker.held.release(run, State.GONE)
    worker.acknowledging.saved(run)
    worker.lose_broker()
    worker.posted.pop()()
    assert worker.sent() == []


# -- a pool that refuses every job -------------------------------------------------------------------------------------


def running_in(error: type[Exception]) -> tuple[Running, Any]:
    """The runs of a worker whose pool raises this error, and its calls."""

    def refuse(request: Any, died: Any) -> Any:
        raise error(request.id, died)

    slots: Any = SimpleNamespace(passed_on=True, run=refuse, stopped=lambda error: False)
    calls: Any = SimpleNamespace(outbox=Outbox(), tally=Tally(), held={}, freed=0)
    nothing: Any = SimpleNamespace(turning=False, epoch=0)
    rest = (nothing, nothing, nothing, nothing, ClosedBuckets(), nothing)
    return Running(slots, nothing, nothing, {"": calls}, *rest), calls


HOOKS: dict[str, Any] = dict.fromkeys(("on_success", "on_failure", "on_timeout", "reject"), lambda *args: None)


def test_revoked_task_refused_by_the_pool_has_not_started() -> None:
    """It was revoked between the store's word and the pool."""
    running, calls = running_in(TaskRevokedError)
    run = Run(
        request_of("a", acknowledged=True, request_dict={}, **HOOKS), Content("a", needs=GPU), epoch=0, nonce="w:1"
    )
    run.request.acknowledged = True
    running.hold_permit(run, Permit(run))
    running.execute(run)
    (over,) = calls.outbox.next_batch(0).exchange.changed
    assert over.facts == Facts(began=False, message=Message.NOBODY)
    assert not running.runs
    assert not calls.tally.take()


@pytest.mark.parametrize("begin_reported", [True, False])
def test_task_whose_pool_refuses_it_goes_back_with_its_message_if_the_store_dropped_that(begin_reported: bool) -> None:
    """The worker reports the begin before the body, which may block the main process; then the body never begins."""
    running, calls = running_in(RuntimeError)
    request = request_of("a", time_start=None, request_dict={}, **HOOKS)
    request.acknowledged = False
    request.message = Delivered(body="[[], {}, {}]", content_type="application/json", content_encoding="utf-8")
    run = Run(request, Content("a", needs=GPU), epoch=0, nonce="w:1", stored=True)
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


# -- a task that fails without having run ------------------------------------------------------------------------------


class Request:
    """One of Celery's with ``acks_late``: it lets go of its message first, and writes its result then."""

    name, id = "t", "1"

    def __init__(self, *, away: bool = False, rejects: bool = False) -> None:
        self.away, self.rejects = away, rejects
        self.happened: list[str] = []

    def on_failure(self, info: Any) -> None:  # noqa: ARG002 - Celery's
        if self.rejects:
            self.reject(requeue=False)
        else:
            self.acknowledge()
        if self.away:
            raise OSError("away")
        self.happened.append("told")

    def acknowledge(self) -> None:
        self.happened.append("acknowledged")

    def reject(self, requeue: bool = False) -> None:
        self.happened.append(f"rejected {requeue}")


@pytest.mark.parametrize(("rejects", "then"), [(False, "acknowledged"), (True, "rejected False")])
def test_message_of_a_failure_goes_when_its_result_is_there(*, rejects: bool, then: str) -> None:
    request = Request(rejects=rejects)
    fail(request, ValueError("no"))
    assert request.happened == ["told", then]
    unreportable = Request(away=True, rejects=rejects)
    with pytest.raises(OSError, match="away"):
        fail(unreportable, ValueError("no"))
    assert unreportable.happened == []


def test_listener_of_a_failing_request_keeps_its_place() -> None:
    request: Any = Request()
    request.reject = SimpleNamespace()
    fail(request, ValueError("no"))
    assert vars(request)["reject"] == SimpleNamespace()
    assert "acknowledge" not in vars(request)
    request.on_failure = lambda _: vars(request).pop("reject")  # the listener saw the end
    fail(request, ValueError("no"))
    assert request.happened == ["told", "acknowledged", "acknowledged"]
    assert "reject" not in vars(request)
