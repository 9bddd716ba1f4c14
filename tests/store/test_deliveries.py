"""Deliveries of one task: what no story of test_delivery_stories.py has, such as turns, deadlines and records."""

from __future__ import annotations

import json

from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange import Delivery
from celery_throttle.store.exchange_reply import Answer
from tests.store.caller import Caller, ended
from tests.store.peek import expire, peek


def test_unacknowledged_task_run_by_its_own_worker_is_on_record(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """Its next call reports both: the broker has it still, and it has ended; a full store refused one before."""
    (grant,) = worker.put("t", one, slots=1).grants
    worker.number += 1
    worker.exchange(unacked=worker.parcelled("t"), ended=[ended(grant)])
    assert "0 t" in peek(redis).finished
    assert peer.put("t", one).parked == (Answer.HAS_RUN,)


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


def test_a_delivery_that_waits_has_no_parts_of_the_whole_record(worker: Caller, one: Limit, redis: Redis) -> None:
    """It was the record itself while it stood in line."""
    (run,) = worker.put("t1", one, slots=1).grants
    worker.look(0)
    expire(redis, "t1")
    worker.look(0)
    assert worker.renew(run) == [2]
    second = json.loads(peek(redis).hashes["records"]["t1"])["second"]
    assert not second.keys() & {"v", "second", "finished", "awaited"}
