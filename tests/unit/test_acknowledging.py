"""What the store hears of messages that the broker keeps although they are not needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_throttle.worker.celery_side.acknowledging import Acknowledging
from celery_throttle.worker.runs import Run
from celery_throttle.worker.store_side.outbox import Outbox


@pytest.mark.parametrize("keeps", [False, True])
def test_what_has_run_and_could_not_be_acknowledged_is_told_with_the_next_call(keeps: bool) -> None:
    """The connection to the broker is gone: whatever is not told of counts as acknowledged."""
    outbox = Outbox()
    calls: Any = SimpleNamespace(outbox=outbox, saving=None)
    running: Any = SimpleNamespace(epoch=2)
    loop: Any = None
    message = SimpleNamespace(acknowledged=False)
    run = Run(SimpleNamespace(id="t", request_dict={}, message=message), epoch=1, group="group", nonce="w:1")
    run.keeps = keeps
    Acknowledging(running, loop, {"group": calls}).has_run(run)
    assert outbox.next_batch(0).said.unacked == [run.delivery]
