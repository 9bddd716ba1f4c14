"""What the store may forget once a task has started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_throttle.store.scripts import execute
from tests.store.caller import KEYS

if TYPE_CHECKING:
    from redis import Redis

    from celery_throttle.core.limits import Limit
    from tests.store.caller import Caller


def test_the_message_of_a_started_task_is_forgotten(worker: Caller, redis: Redis, one: Limit) -> None:
    """With early acknowledgement nobody may run it again."""
    worker.put("t", one)
    (grant,) = worker.look().grants
    assert redis.hexists(KEYS.messages, "t")
    execute(redis, worker.store.started([("t", grant.nonce)]))
    assert not redis.hexists(KEYS.messages, "t")


def test_only_its_holder_can_have_a_message_forgotten(worker: Caller, redis: Redis, one: Limit) -> None:
    """A worker that was taken for dead may say so late: the message is another delivery's by then."""
    worker.put("t", one)
    assert worker.look().grants
    execute(redis, worker.store.started([("t", "somebody else"), ("unknown", "nonce")]))
    assert redis.hexists(KEYS.messages, "t")
