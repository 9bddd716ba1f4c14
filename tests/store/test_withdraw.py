"""Taking revoked tasks out of their line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.store.caller import message_of
from tests.store.peek import peek

if TYPE_CHECKING:
    from redis import Redis

    from celery_throttle.core.limits import Limit
    from tests.store.caller import Caller


def test_the_caller_gets_the_message(worker: Caller, stranger: Caller, one: Limit, redis: Redis) -> None:
    """The caller that withdraws a task is responsible for it; others wait on, in their order."""
    worker.take("t", one)
    for task in ("t1", "t2", "t3"):
        worker.put(task, one)
    assert stranger.withdraw("t2", "unknown") == (("t2", message_of("t2")),)
    store = peek(redis)
    assert store.waiting("gpu") == ["t1", "t3"]
    assert "t2" not in store.records


def test_a_task_is_withdrawn_once(worker: Caller, peer: Caller, one: Limit) -> None:
    """All workers receive a revoke; one of them is responsible for it."""
    worker.take("t", one)
    worker.put("t1", one)
    assert len(worker.withdraw("t1", "t1")) == 1
    assert peer.withdraw("t1") == ()


def test_running_task_is_left_alone(worker: Caller, one: Limit, redis: Redis) -> None:
    """Its worker terminates it, if that was asked for, and gives the permit back."""
    worker.put("t", one, slots=1)
    assert worker.withdraw("t") == ()
    store = peek(redis)
    assert store.holders("gpu") == ["t"]
    assert store.messages == {"t": message_of("t")}


def test_a_second_delivery_is_withdrawn_from_beside_a_run(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """A revoked task must not run a second time."""
    held = worker.take("t", one)
    peer.put("t", one, attempt=1)
    assert [each.message for each in worker.withdraw("t")] == [message_of("t", 1)]
    assert peek(redis).seconds == {}
    assert worker.release(held, "again", slots=1).grants == ()


def test_a_task_and_its_second_delivery_are_both_withdrawn(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    (grant,) = worker.put("t", one, slots=1).grants
    peer.put("t", one, attempt=1)
    worker.release(grant, "return")
    messages = [each.message for each in worker.withdraw("t")]
    assert messages == [message_of("t"), message_of("t", 1)]
    assert not peek(redis).records
