"""A second delivery of a task id while the first one runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.store.caller import Parcel, message_of
from tests.store.peek import expire, peek

if TYPE_CHECKING:
    from redis import Redis

    from celery_throttle.core.limits import Limit
    from tests.store.caller import Caller


def test_a_twin_waits_for_the_first_though_permits_are_free(
    worker: Caller, peer: Caller, two: Limit, redis: Redis
) -> None:
    """It is in no line: nobody can start it before the first one ends."""
    worker.take("t", two)
    assert peer.put("t", two, slots=1).grants == ()
    assert peer.look(1).grants == ()
    assert peek(redis).twins.keys() == {"t"}


def test_a_twin_is_dropped_when_the_first_succeeds(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    held = worker.take("t", one)
    peer.put("t", one)
    assert worker.release(held, slots=1).grants == ()
    store = peek(redis)
    for index in (store.twins, store.twin_messages, store.records):
        assert not index


def test_a_twin_runs_when_the_first_dies(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """The first worker is gone for a lease: the second delivery starts."""
    worker.take("t", one)
    peer.put("t", one)
    expire(redis, "t")
    (grant,) = peer.look(1).grants
    assert (grant.task_id, grant.message) == ("t", message_of("t"))
    assert not peek(redis).twins


def test_a_twin_runs_when_the_child_of_the_first_is_lost(worker: Caller, peer: Caller, one: Limit) -> None:
    held = worker.take("t", one)
    peer.put("t", one)
    assert [grant.task_id for grant in worker.release(held, "again", slots=1).grants] == ["t"]


def test_a_retry_that_arrives_before_the_first_attempt_ended_runs(worker: Caller, peer: Caller, one: Limit) -> None:
    """The child has published its retry before its worker heard of its end."""
    held = worker.take("t", one)
    peer.put("t", one, attempt=1)
    (grant,) = worker.release(held, "again", slots=1).grants
    assert (grant.attempt, grant.message) == (1, message_of("t", 1))


def test_a_newer_twin_outlives_a_success_of_the_first(worker: Caller, peer: Caller, one: Limit) -> None:
    """Only deliveries of the attempt that succeeded are needless."""
    held = worker.take("t", one)
    peer.put("t", one, attempt=1)
    assert [grant.attempt for grant in worker.release(held, slots=1).grants] == [1]


@pytest.mark.parametrize("attempts", [(0, 1), (1, 0)])
def test_of_several_twins_the_newest_attempt_waits(
    worker: Caller, peer: Caller, one: Limit, redis: Redis, attempts: tuple[int, int]
) -> None:
    """The other one would only do again what it does."""
    worker.take("t", one)
    for attempt in attempts:
        peer.put("t", one, attempt=attempt)
        peer.put(f"t{attempt}", one)
    store = peek(redis)
    assert store.twins["t"].attempt == 1
    assert store.twin_messages == {"t": message_of("t", 1)}
    assert all(store.twins["t"].ticket < place.ticket for place in store.line)


def test_a_twin_keeps_the_place_it_came_at(worker: Caller, peer: Caller, one: Limit) -> None:
    """It has its ticket from the start, before those who came later."""
    held = worker.take("t", one)
    peer.put("t", one)
    worker.put("t2", one)
    assert [grant.task_id for grant in worker.release(held, "again", slots=1).grants] == ["t"]


def test_a_twin_of_a_resumed_task_does_not_touch_its_message(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """Both deliveries are in the store, each with its own message."""
    worker.park(Parcel("t", one, "q", b"first"), slots=1)
    peer.park(Parcel("t", one, "q", b"second"))
    store = peek(redis)
    assert store.messages == {"t": b"first"}
    assert store.twin_messages == {"t": b"second"}


def test_a_twin_waits_on_while_the_first_goes_back_in_line(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """The first was rejected to be run again: still one at a time, and the twin is dropped in the end."""
    (first,) = worker.put("t", one, slots=1).grants
    peer.put("t", one)
    (again,) = worker.release(first, "requeue", slots=1).grants
    assert peek(redis).twins.keys() == {"t"}
    worker.release(again)
    assert not peek(redis).records
