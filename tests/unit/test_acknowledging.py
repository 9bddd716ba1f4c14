"""The rows about messages that the broker keeps although they are not needed."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from celery_throttle.store.exchange import DeliveryChange
from celery_throttle.worker.acknowledging import Acknowledging
from celery_throttle.worker.celery_side.broker import Broker
from celery_throttle.worker.held_back.held_back import HeldBack
from celery_throttle.worker.runs import Run, State
from celery_throttle.worker.store_side.outbox import Outbox


class Worker:
    """The acknowledging part of a worker, in the second epoch of its broker."""

    def __init__(self) -> None:
        self.outbox, self.broker, self.posted = Outbox(), Broker(""), list[Any]()
        self.broker.disconnected()
        calls: Any = SimpleNamespace(outbox=self.outbox)
        running: Any = SimpleNamespace(forget=lambda request: None)
        loop: Any = SimpleNamespace(post=lambda function, *args: self.posted.append(partial(function, *args)))
        self.held = HeldBack(loop, loop, lambda more: None)
        self.acknowledging = Acknowledging(running, self.broker, loop, {"group": calls}, self.held)

    def run(self, *, epoch: int = 1, keeps: bool = False) -> Run:
        message = SimpleNamespace(acknowledged=False)

        def acknowledge() -> None:
            message.acknowledged = True

        request = SimpleNamespace(id="t", request_dict={}, message=message, acknowledge=acknowledge)
        run = Run(request, epoch=epoch, group="group", nonce="w:1")
        run.keeps = keeps
        return run

    def lose_broker(self) -> None:
        self.broker.disconnected()
        self.outbox.disconnected()
        self.held.forget()


@pytest.mark.parametrize("keeps", [False, True])
def test_unacknowledged_finished_run_is_sent_with_the_next_call(keeps: bool) -> None:
    """The connection to the broker is gone: an unreported message counts as acknowledged."""
    worker = Worker()
    run = worker.run(epoch=0, keeps=keeps)
    worker.acknowledging.has_run(run)
    assert worker.outbox.next_batch(0).exchange.changed == [DeliveryChange("unacked", *run.delivery)]


def test_acknowledged_parked_task_is_not_sent() -> None:
    worker = Worker()
    worker.acknowledging.parked(worker.run())
    assert worker.outbox.next_batch(0).exchange.changed == []


def test_acknowledgement_on_a_lost_connection_does_not_count() -> None:
    """The broker may have put it back before: Celery acknowledges late, and on a channel that is closed by then."""
    worker = Worker()
    run = worker.run()
    worker.acknowledging.parked(run)
    worker.lose_broker()
    assert worker.outbox.next_batch(0).exchange.changed == [DeliveryChange("unacked", *run.delivery)]
    assert worker.outbox.next_batch(0).exchange.changed == []


def test_safe_acknowledgement_on_a_lost_connection_has_no_effect() -> None:
    """As it does already: it was parked so."""
    worker = Worker()
    run = worker.run(keeps=True)
    worker.acknowledging.parked(run)
    assert worker.held.release(run, State.GONE)
    worker.acknowledging.saved(run)
    worker.lose_broker()
    worker.posted.pop()()
    assert worker.outbox.next_batch(0).exchange.changed == []
