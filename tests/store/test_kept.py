"""Parked tasks whose messages the broker keeps until their worker reports the acknowledgement."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange import Delivery
from celery_throttle.store.exchange_reply import Answer, SavedAnswer
from tests.store.caller import Caller
from tests.store.peek import peek

LOST, THERE, DONE = SavedAnswer


def ran(redis: Redis) -> set[str]:
    """Return the runs in the record."""
    return set(peek(redis).finished)


def test_delivered_again_it_is_kept_twice(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """An acknowledgement covers only one of two messages."""
    worker.take("first", one)
    worker.put("t", one, unacked=True)
    met = peer.arrival("t", one)
    assert peer.exchange(asked=[met._replace(unacked=True)]).asked == (Answer.PARKED,)
    assert peer.put("t", one, unacked=True).parked == (Answer.PARKED,)
    kept = [*worker.parcelled("t"), Delivery("t", 0, met.nonce), *peer.parcelled("t")]
    while kept:
        assert peek(redis).records["t"].unacked == {each.nonce for each in kept}
        worker.exchange(acked=[kept.pop()])
    assert "unacked" not in peek(redis).records["t"].raw


def test_delivery_after_its_run_is_kept_until_acknowledged(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """The store was asked about the other one before, and the answer came later than the run ended."""
    worker.put("t", one, unacked=True)
    (grant,) = peer.look().grants
    peer.release(grant)
    other = [Delivery("t", 0, peer.nonce())]
    peer.exchange(unacked=other)
    peer.exchange(acked=other)
    assert ran(redis) == {"0 t"}
    worker.exchange(acked=worker.parcelled("t"))
    assert not ran(redis)


def test_acknowledged_message_of_another_attempt(worker: Caller, one: Limit, redis: Redis) -> None:
    worker.take("first", one)
    worker.put("t", one, unacked=True)
    before = worker.parcelled("t")
    worker.put("t", one, attempt=1, unacked=True)
    worker.exchange(acked=before)
    assert peek(redis).records["t"].unacked == {each.nonce for each in worker.parcelled("t")}


@pytest.mark.parametrize(("first", "second"), [(0, 0), (0, 1), (1, 0)])
def test_both_deliveries_beside_a_late_run_are_kept(
    worker: Caller, peer: Caller, one: Limit, redis: Redis, first: int, second: int
) -> None:
    """One was parked and one waited beside its run, which went back; and a third delivery runs since long ago."""
    worker.put("t", one, attempt=first, unacked=True)
    (grant,) = worker.look().grants
    peer.put("t", one, attempt=second, unacked=True)
    peer.look(0)
    worker.release(grant, "return")
    assert worker.renew(worker.arrival("t", one)) == [2]
    store = peek(redis)
    kept = {(each, next(iter(caller.parcelled("t"))).nonce) for each, caller in ((first, worker), (second, peer))}
    waits = {(store.seconds["t"].attempt, nonce) for nonce in store.seconds["t"].unacked}
    assert kept == waits | {(attempt, nonce) for (attempt, _), left in store.ran.items() for nonce in left}
    assert {attempt for attempt, _ in waits} == {max(first, second)}
    assert {attempt for attempt, _ in store.ran} == {first, second} - {max(first, second)}


def test_task_that_was_sent_back_is_kept(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """With late acknowledgement its message is at the broker."""
    held = worker.take("t", one)
    worker.send_back(held._replace(unacked=True), 0)
    assert peek(redis).records["t"].unacked == {held.nonce}
    (grant,) = peer.look().grants
    peer.release(grant)
    assert ran(redis) == {"0 t"}


# -- their records in the store ----------------------------------------------------------------------------------------


def test_asking_is_a_write(worker: Caller, one: Limit, redis: Redis) -> None:
    """Else there would be nothing to be waited for on that connection."""
    worker.put("t", one, unacked=True)
    before: Any = redis.info("persistence")
    worker.saved("t")
    after: Any = redis.info("persistence")
    assert after["rdb_changes_since_last_save"] == before["rdb_changes_since_last_save"] + 1
