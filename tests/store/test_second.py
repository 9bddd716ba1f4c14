"""A second delivery of a task id while the first one runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from celery_throttle.core.limits import Limit
from tests.store.caller import message_of
from tests.store.peek import expire, peek
from tests.store.terms_caller import terms

if TYPE_CHECKING:
    from redis import Redis

    from celery_throttle.core.policy import Needs
    from tests.store.caller import Caller


def test_a_second_waits_for_the_first_though_permits_are_free(
    worker: Caller, peer: Caller, two: Limit, redis: Redis
) -> None:
    """It is in no line: no worker can start it before the first one ends."""
    worker.take("t", two)
    assert peer.put("t", two, slots=1).grants == ()
    assert peer.look(1).grants == ()
    assert peek(redis).seconds.keys() == {"t"}


def test_a_second_is_dropped_when_the_first_succeeds(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    held = worker.take("t", one)
    peer.put("t", one)
    assert worker.release(held, slots=1).grants == ()
    store = peek(redis)
    for index in (store.seconds, store.second_messages, store.records):
        assert not index


def test_a_second_runs_when_the_first_dies(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """The first worker is gone for a lease: the second delivery starts."""
    worker.take("t", one)
    peer.put("t", one)
    expire(redis, "t")
    (grant,) = peer.look(1).grants
    assert (grant.task, grant.message) == ("t", message_of("t"))
    assert not peek(redis).seconds


def test_a_second_runs_when_the_child_of_the_first_is_lost(worker: Caller, peer: Caller, one: Limit) -> None:
    held = worker.take("t", one)
    peer.put("t", one)
    assert [grant.task for grant in worker.release(held, "again", slots=1).grants] == ["t"]


def test_retry_that_arrives_before_its_first_attempt_ended_runs(worker: Caller, peer: Caller, one: Limit) -> None:
    """The child has published its retry before its worker saw its end."""
    held = worker.take("t", one)
    peer.put("t", one, attempt=1)
    (grant,) = worker.release(held, "again", slots=1).grants
    assert (grant.attempt, grant.message) == (1, message_of("t", 1))


def test_a_newer_second_outlives_a_success_of_the_first(worker: Caller, peer: Caller, one: Limit) -> None:
    """Only deliveries of the attempt that succeeded are needless."""
    held = worker.take("t", one)
    peer.put("t", one, attempt=1)
    assert [grant.attempt for grant in worker.release(held, slots=1).grants] == [1]


@pytest.mark.parametrize("attempts", [(0, 1), (1, 0)])
def test_of_several_seconds_the_newest_attempt_waits(
    worker: Caller, peer: Caller, one: Limit, redis: Redis, attempts: tuple[int, int]
) -> None:
    """The other one would only repeat its work."""
    worker.take("t", one)
    for attempt in attempts:
        peer.put("t", one, attempt=attempt)
        peer.put(f"t{attempt}", one)
    store = peek(redis)
    assert store.seconds["t"].attempt == 1
    assert store.second_messages == {"t": message_of("t", 1)}
    assert all(store.seconds["t"].ticket < record.ticket for record in store.parked.values())


def test_a_second_keeps_the_place_it_came_at(worker: Caller, peer: Caller, one: Limit) -> None:
    """It has its ticket from the start, before later ones."""
    held = worker.take("t", one)
    peer.put("t", one)
    worker.put("t2", one)
    assert [grant.task for grant in worker.release(held, "again", slots=1).grants] == ["t"]


def test_a_second_of_a_resumed_task_does_not_touch_its_message(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """Both deliveries are in the store, each with its own message."""
    worker.put("t", one, message=b"first", slots=1)
    peer.put("t", one, message=b"second")
    store = peek(redis)
    assert store.messages == {"t": b"first"}
    assert store.second_messages == {"t": b"second"}


def test_a_second_waits_on_while_the_first_goes_back_in_line(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """The first was rejected to be run again: still one at a time, and the second is dropped in the end."""
    (first,) = worker.put("t", one, slots=1).grants
    peer.put("t", one)
    (again,) = worker.release(first, "requeue", slots=1).grants
    assert peek(redis).seconds.keys() == {"t"}
    worker.release(again)
    assert not peek(redis).records


def test_a_second_has_the_next_turn_of_its_key(worker: Caller, peer: Caller, redis: Redis) -> None:
    """Later tasks do not go before it for ever."""
    limit = Limit("api", 1, fair_by="who")

    def of(who: str) -> Needs:
        return terms(limit).needs({"fair": [who, 1]})

    worker.take("a0", of("a"))
    worker.put("a1", of("a"))
    peer.put("a0", of("a"))
    expire(redis, "a0")
    for number in range(30):
        worker.put(f"b{number}", of("b"))
    order, grants = [], peer.look().grants
    while grants:
        order.append(grants[0].task)
        grants = peer.release(grants[0], slots=1).grants
    assert order[:4] == ["a1", "b0", "a0", "b1"]


def test_a_newer_second_has_the_turn_of_the_one_before_it(worker: Caller, peer: Caller, redis: Redis) -> None:
    needs = terms(Limit("api", 1, fair_by="who")).needs({"fair": ["a", 1]})
    worker.take("t", needs)
    peer.put("t", needs)
    before = peek(redis)
    peer.put("t", needs, attempt=1)
    store = peek(redis)
    assert store.seconds["t"].place == before.seconds["t"].place
    assert store.hashes["turns"] == before.hashes["turns"]


def test_a_second_may_wait_for_as_long_as_any_other(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    held = worker.take("t", one)
    peer.put("t", one, wait_ms=600_000)
    worker.put("other", one)
    worker.release(held, "again")
    store = peek(redis)
    assert store.now < store.due("task")["t"] <= store.now + 600_000


def test_a_delivery_that_waits_has_no_parts_of_the_whole_record(worker: Caller, one: Limit, redis: Redis) -> None:
    """It was the record itself while it stood in line."""
    (run,) = worker.put("t1", one, slots=1).grants
    worker.look(0)
    expire(redis, "t1")
    worker.look(0)
    assert worker.renew(run) == [2]
    second = json.loads(peek(redis).hashes["records"]["t1"])["second"]
    assert not second.keys() & {"v", "second", "finished", "awaited"}
