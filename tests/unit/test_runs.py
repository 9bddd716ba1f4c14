"""The gate's record of one delivery."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kombu.message import Message as Delivered

from celery_throttle.core.facts import Message, Result
from celery_throttle.worker.runs import Run


class Channel:
    """Of a connection that is gone, or not."""

    def __init__(self, *, gone: bool) -> None:
        self.gone = gone
        self.no_ack_consumers: set[str] = set()

    def basic_ack(self, tag: str, multiple: bool = False) -> None:
        if self.gone:
            raise ConnectionError(tag, multiple)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("gone", "epoch", "result", "where"),
    [
        # The connection broke without notice: it is delivered again, and its run must be on record.
        pytest.param(True, 1, Result.SUCCESS, Message.BROKER, id="not acknowledged"),
        pytest.param(False, 1, Result.SUCCESS, Message.NOBODY, id="acknowledged"),
        # The broker may have put it back before the acknowledgement arrived.
        pytest.param(False, 2, Result.SUCCESS, Message.BROKER, id="acknowledged on a connection that is gone"),
        pytest.param(False, 2, Result.NOTHING, Message.NOBODY, id="the same, without a result"),
    ],
)
def test_where_the_message_is_after_a_run(gone: bool, epoch: int, result: Result, where: Message, late: bool) -> None:
    message = Delivered(channel=Channel(gone=gone), delivery_tag="1", body="")
    request = SimpleNamespace(
        message=message, acknowledged=True, task=SimpleNamespace(acks_late=late), delivery_info=None
    )
    message.ack_log_error(SimpleNamespace(critical=lambda *_, **__: None), (ConnectionError,))
    assert Run(request, epoch=1).facts(result, began=True, epoch=epoch).message is where


def test_an_attempt_is_later_than_those_before_it() -> None:
    """A retry is later, and a message by `replace` too, which counts its retries anew. Another delivery is not."""

    def attempt(**sent: object) -> int:
        return Run(SimpleNamespace(request_dict=sent), epoch=1).attempt

    assert attempt() == attempt(retries=None, replaced_task_nesting=0) == 0
    assert attempt(retries=2) == attempt(retries=2, replaced_task_nesting=None) > attempt(retries=1)
    assert attempt(replaced_task_nesting=1) > attempt(retries=1000)
    assert attempt(replaced_task_nesting=1, retries=1) > attempt(replaced_task_nesting=1)
