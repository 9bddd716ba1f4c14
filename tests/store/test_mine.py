"""What a worker holds in the eyes of the store, for one that missed a reply."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.store.peek import expire

if TYPE_CHECKING:
    from redis import Redis

    from celery_throttle.core.limits import Limit
    from tests.store.caller import Caller


def test_grants_that_never_arrived_are_found(worker: Caller, one: Limit) -> None:
    """Word for word as they were granted, so that they can start or go back."""
    grants = worker.put("t", one, attempt=2, slots=1).grants
    assert worker.mine() == grants


def test_a_permit_asked_for_is_found(worker: Caller, one: Limit) -> None:
    held = worker.take("t", one, attempt=1)
    (grant,) = worker.mine()
    assert (grant.task_id, grant.nonce, grant.limit, grant.attempt) == ("t", held.nonce, "gpu", 1)


def test_neither_those_of_others_nor_parked_ones(worker: Caller, peer: Caller, two: Limit) -> None:
    peer.take("t1", two)
    held = worker.take("t2", two)
    worker.put("t3", two)
    assert [grant.nonce for grant in worker.mine()] == [held.nonce]


def test_what_was_given_back_or_reclaimed_is_not_there(worker: Caller, two: Limit, redis: Redis) -> None:
    held = worker.take("t1", two)
    worker.take("t2", two)
    worker.release(held)
    expire(redis, "t2")
    worker.reap()
    assert worker.mine() == ()


def test_a_grant_that_never_arrived_goes_back_to_its_place(worker: Caller, peer: Caller, one: Limit) -> None:
    """As a worker does after it lost a reply: nobody overtakes the task meanwhile, and it was not delivered."""
    (grant,) = worker.put("t1", one, slots=1).grants
    worker.put("t2", one)
    worker.release(grant, "return")
    (again,) = peer.look().grants
    assert (again.task_id, again.deliveries) == ("t1", 0)
