"""Parked tasks whose messages the broker keeps until their worker reports the acknowledgement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from celery_throttle.store.exchange import Delivery
from celery_throttle.store.exchange_reply import Answer, SavedAnswer
from tests.store.peek import KEY, peek

if TYPE_CHECKING:
    from redis import Redis

    from celery_throttle.core.limits import Limit
    from tests.store.caller import Caller
    from tests.store.steering import Steering

LOST, THERE, DONE = SavedAnswer


def ran(redis: Redis) -> set[str]:
    """Return the runs in the record."""
    return set(peek(redis).finished)


def test_it_is_known_whenever_it_runs(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """For any number of calls since, its worker has not reported the acknowledgement."""
    worker.put("t", one, unacked=True)
    worker.look(0)
    (grant,) = peer.look().grants
    peer.release(grant)
    assert ran(redis) == {"0 t"}
    assert peer.ask("t", one)[0] == Answer.HAS_RUN
    assert peer.put("t", one).parked == (Answer.HAS_RUN,)


def test_acknowledged_before_it_runs_it_leaves_no_trace(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    worker.put("t", one, unacked=True)
    worker.exchange(acked=worker.parcelled("t"))
    (grant,) = peer.look().grants
    peer.release(grant)
    assert not ran(redis)


@pytest.mark.parametrize("ends", [False, True])
def test_message_acknowledged_with_its_run_leaves_no_trace(
    worker: Caller, peer: Caller, one: Limit, redis: Redis, ends: bool
) -> None:
    worker.put("t", one, unacked=True)
    (grant,) = peer.look().grants
    if ends:
        peer.release(grant)
    worker.exchange(acked=worker.parcelled("t"))
    if not ends:
        peer.release(grant)
    assert not ran(redis)
    peer.take("t", one)


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


def test_delivered_again_it_is_known_until_both_are_acknowledged(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    worker.put("t", one, unacked=True)
    peer.put("t", one, unacked=True)
    (grant,) = peer.look().grants
    peer.release(grant)
    worker.exchange(acked=worker.parcelled("t"))
    assert peer.saved("t") == [DONE]
    peer.exchange(acked=peer.parcelled("t"))
    assert not ran(redis)


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


@pytest.mark.parametrize(("first", "second"), [(1, None), (0, 2)])
def test_an_attempt_that_a_retry_has_taken_the_place_of_is_over(
    worker: Caller, peer: Caller, one: Limit, redis: Redis, first: int, second: int | None
) -> None:
    """It is delivered again when the retry is parked, or waits beside a run."""
    if second is None:
        worker.take("other", one)
        worker.put("t", one, attempt=first)
    else:
        worker.take("t", one, attempt=first)
        worker.put("t", one, attempt=second)
    late = 0 if second is None else 1
    assert peer.put("t", one, attempt=late, unacked=True).parked == (Answer.PARKED,)
    assert ran(redis) == {f"{late} t"}
    peer.exchange(acked=peer.parcelled("t"))
    assert not ran(redis)


def test_delivery_beside_a_run_is_kept_until_both_acknowledged(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    held = worker.take("t", one)
    for each in (worker, peer):
        each.put("t", one, unacked=True)
    worker.exchange(acked=worker.parcelled("t"))
    worker.release(held)
    assert peer.saved("t") == [DONE]
    peer.exchange(acked=peer.parcelled("t"))
    assert not ran(redis)


@pytest.mark.parametrize("ends", [False, True])
def test_acknowledged_drained_task_covers_no_other_message(
    worker: Caller, peer: Caller, one: Limit, steering: Steering, ends: bool
) -> None:
    """It was drained: the published message is another one, which the broker keeps when it is parked."""
    worker.put("t", one, unacked=True)
    steering.borrow("t")
    steering.publish("t")
    peer.put("t", one, unacked=True)
    if not ends:
        worker.exchange(acked=worker.parcelled("t"))
    (grant,) = peer.look().grants
    peer.release(grant)
    if ends:
        worker.exchange(acked=worker.parcelled("t"))
    assert peer.saved("t") == [DONE]


def test_delivery_that_the_broker_does_not_keep_has_no_effect(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    worker.take("first", one)
    worker.put("t", one)
    assert peer.ask("t", one)[0] == Answer.PARKED
    assert peer.put("t", one).parked == (Answer.PARKED,)
    assert not peek(redis).records["t"].unacked


def test_acknowledged_message_of_another_attempt(worker: Caller, one: Limit, redis: Redis) -> None:
    worker.take("first", one)
    worker.put("t", one, unacked=True)
    before = worker.parcelled("t")
    worker.put("t", one, attempt=1, unacked=True)
    worker.exchange(acked=before)
    assert peek(redis).records["t"].unacked == {each.nonce for each in worker.parcelled("t")}


def test_one_that_waits_beside_a_run_and_is_dropped_is_known(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """Its message may come again."""
    held = worker.take("t", one)
    peer.put("t", one, unacked=True)
    worker.release(held)
    assert ran(redis) == {"0 t"}
    peer.exchange(acked=peer.parcelled("t"))
    assert not ran(redis)


def test_one_that_waits_beside_a_run_and_was_acknowledged(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    held = worker.take("t", one)
    peer.put("t", one, unacked=True)
    peer.exchange(acked=peer.parcelled("t"))
    worker.release(held)
    assert not ran(redis)


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


@pytest.mark.parametrize("kept", [False, True])
def test_task_with_an_outcome_is_over(worker: Caller, peer: Caller, one: Limit, redis: Redis, kept: bool) -> None:
    """That it has expired, say: it must not come again from the broker, and begin."""
    worker.put("t", one, unacked=kept)
    (grant,) = peer.look().grants
    peer.release(grant, "never")
    assert ran(redis) == {"0 t"}
    worker.look()
    assert ran(redis) == ({"0 t"} if kept else set())


def test_one_that_was_revoked_is_over(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    worker.take("first", one)
    worker.put("t", one, unacked=True)
    peer.withdraw("t")
    assert ran(redis) == {"0 t"}


def test_task_that_was_sent_back_is_kept(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """With late acknowledgement its message is at the broker."""
    held = worker.take("t", one)
    worker.send_back(held._replace(unacked=True), 0)
    assert peek(redis).records["t"].unacked == {held.nonce}
    (grant,) = peer.look().grants
    peer.release(grant)
    assert ran(redis) == {"0 t"}


# -- their records in the store ----------------------------------------------------------------------------------------


def test_parked_message_is_there(worker: Caller, one: Limit) -> None:
    worker.take("first", one)
    worker.put("t", one, unacked=True)
    worker.put("u", one, attempt=2, unacked=True)
    assert worker.saved("t", "u", "other") == [THERE, THERE, LOST]


def test_message_lost_with_the_store_is_lost(worker: Caller, one: Limit, redis: Redis) -> None:
    worker.put("t", one, unacked=True)
    redis.flushall()
    assert worker.saved("t") == [LOST]
    assert not redis.keys()


def test_finished_task_is_done(worker: Caller, peer: Caller, one: Limit) -> None:
    worker.put("t", one, unacked=True)
    (grant,) = peer.look().grants
    assert worker.saved("t") == [THERE]
    peer.release(grant)
    assert worker.saved("t") == [DONE]


def test_early_acknowledged_task_is_done_once_begun(worker: Caller, peer: Caller, one: Limit) -> None:
    worker.put("t", one, unacked=True)
    (grant,) = peer.look().grants
    peer.exchange(began=[("t", grant.nonce)])
    assert worker.saved("t") == [DONE]


def test_a_holder_that_the_store_had_lost_has_no_message(worker: Caller, peer: Caller, one: Limit) -> None:
    """The broker has the message: it has to wait beside the run."""
    held = peer.take("t", one)
    assert worker.saved("t") == [LOST]
    worker.put("t", one, unacked=True)
    assert worker.saved("t") == [THERE]
    peer.release(held, "lost")
    assert worker.saved("t") == [THERE]


def test_set_aside_message_is_there(worker: Caller, one: Limit, redis: Redis) -> None:
    held = worker.take("first", one)
    worker.put("t", one, unacked=True)
    redis.hset(KEY["records"], "t", "{")
    assert [worker.saved("t"), worker.saved("t")] == [[THERE], [THERE]]
    worker.release(held, slots=1)  # out of its line, too
    assert worker.saved("t") == [THERE]


def test_asking_is_a_write(worker: Caller, one: Limit, redis: Redis) -> None:
    """Else there would be nothing to be waited for on that connection."""
    worker.put("t", one, unacked=True)
    before: Any = redis.info("persistence")
    worker.saved("t")
    after: Any = redis.info("persistence")
    assert after["rdb_changes_since_last_save"] == before["rdb_changes_since_last_save"] + 1


def test_a_full_store_is_asked_too(worker: Caller, one: Limit, redis: Redis) -> None:
    worker.put("t", one, unacked=True)
    redis.config_set("maxmemory", 1)
    try:
        assert worker.saved("t") == [THERE]
        worker.exchange(acked=worker.parcelled("t"))
    finally:
        redis.config_set("maxmemory", 0)
