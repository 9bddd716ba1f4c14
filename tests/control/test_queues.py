"""Questions to a broker: a reader does not wait for one that never answers, or is away."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
from celery import Celery

from celery_throttle.control import queues
from celery_throttle.control.queues import Depth, Slots, consumed, depths, free_slots
from tests.support.remote import wait_heard
from tests.support.workers import Workers

pytestmark = pytest.mark.timeout(20)


def test_nothing_is_known_of_a_broker_that(no_broker: str) -> None:
    app = Celery(broker=f"redis://{no_broker}/0")
    assert consumed(app) is None
    assert depths(app, ["q"]) == {"q": Depth()}


def test_workers_are_asked_for_their_queues_and_free_slots(workers: Workers) -> None:
    app = workers.app().app
    assert (consumed(app), free_slots(app)) == (None, None)
    wait_heard(app, workers.start(queues="one,two", concurrency=3))
    assert (consumed(app), free_slots(app)) == ({"one", "two"}, [Slots(frozenset({"one", "two"}), 3)])


class Refused(Exception):
    def __init__(self, reply_code: int) -> None:
        self.reply_code = reply_code


@pytest.mark.parametrize(
    ("code", "depth"), [(404, Depth(0, exists=False)), (405, Depth()), (403, Depth()), (None, Depth(3, exists=True))]
)
def test_amqp_answers_are_read(code: int | None, depth: Depth) -> None:
    """405: it is another connection's own; 403: we may not ask."""
    connection = MagicMock(channel_errors=(Refused,))
    declare = connection.channel().__enter__().queue_declare
    declare.return_value.message_count = 3
    declare.side_effect = code and Refused(code)
    assert queues._depth(connection, "q", {"q"}) == depth
