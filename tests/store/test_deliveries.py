"""Deliveries of one task: what no story of test_delivery_stories.py has, such as turns, deadlines and records."""

from __future__ import annotations

import json

import pytest
from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import Needs
from celery_throttle.store.exchange import Delivery
from celery_throttle.store.exchange_reply import Answer
from tests.store.caller import Caller, ended, message_of, started
from tests.store.peek import KEY, expire, lapse, peek
from tests.store.terms_caller import terms


def run_elsewhere(worker: Caller, peer: Caller, one: Limit, how: str = "done") -> None:
    """Park a task with a worker that then stays silent; another one runs it."""
    worker.put("t", one)
    (grant,) = peer.look().grants
    peer.release(grant, how)


def test_unacknowledged_task_run_by_its_own_worker_is_on_record(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """Its next call reports both: the broker has it still, and it has ended; a full store refused one before."""
    (grant,) = worker.put("t", one, slots=1).grants
    worker.number += 1
    worker.exchange(unacked=worker.parcelled("t"), ended=[ended(grant)])
    assert "0 t" in peek(redis).finished
    assert peer.put("t", one).parked == (Answer.HAS_RUN,)


def test_run_is_forgotten_after_a_day(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    run_elsewhere(worker, peer, one)
    store = peek(redis)
    assert store.sets["ends"]["records:t"] == pytest.approx(store.now + 86_400_000, abs=60_000)
    lapse(redis, "records:t")
    peer.reap()
    assert not peek(redis).finished


def test_parked_task_of_a_forgotten_worker(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """It was killed, and a day has passed: nothing is to come of it any more."""
    worker.put("t", one)
    redis.hdel(KEY["workers"], worker.name)
    (grant,) = peer.look().grants
    peer.release(grant)
    assert started(peer.look()) == ()


def test_task_sent_back_twice_by_a_refused_call_runs_once(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """The copy was on its way when the store refused the call for lack of memory, and came when it had some again."""
    held = worker.take("t", one)
    worker.send_back(held, 0.0)
    (grant,) = peer.look().grants
    peer.release(grant)
    back = held._replace(message=b"again", pause=(0.0, held.needs))
    assert not worker.exchange(slots=1, unacked=[Delivery("t", 0, held.nonce)], back=[back]).grants
    assert "t" not in peek(redis).records


def test_two_deliveries_beside_a_late_run_cover_only_themselves(worker: Caller, peer: Caller, one: Limit) -> None:
    """One was parked and one waited beside its run, which went back; and a third delivery runs since long ago."""
    peer.put("t", one)
    (grant,) = worker.look().grants
    worker.put("t", one)
    worker.release(grant, "return")
    third = worker.arrival("t", one)
    assert worker.renew(third) == [2]
    worker.release(third)
    worker.look(0)
    assert worker.put("t", one).parked == (Answer.HAS_RUN,)


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


def test_a_second_of_a_resumed_task_does_not_touch_its_message(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """Both deliveries are in the store, each with its own message."""
    worker.put("t", one, message=b"first", slots=1)
    peer.put("t", one, message=b"second")
    store = peek(redis)
    assert store.messages == {"t": b"first"}
    assert store.second_messages == {"t": b"second"}


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
