"""Deliveries, permits that pass on, and renewals: what no story has, such as the order of several rows of one call."""

from __future__ import annotations

import itertools
import json

from redis import Redis

from celery_throttle.core.facts import Result
from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange import Arrival, Delivery, DeliveryChange, Exchange
from celery_throttle.store.exchange_reply import Answer
from celery_throttle.store.scripts import execute
from tests.store.caller import Caller, ended, passed, started
from tests.store.peek import expire, let_come_due, peek


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


# -- permits that passed on --------------------------------------------------------------------------------------------


def passing(held: Arrival, to: Arrival, result: Result = Result.SUCCESS) -> DeliveryChange:
    return passed(held.task, held.nonce, result, to)


def test_changes_are_carried_out_in_the_order_in_which_they_happened(worker: Caller, two: Limit, redis: Redis) -> None:
    """A run ends, and its retry gets the permit of another run: the other way round the retry would not be held."""
    first, other = worker.take("t", two), worker.take("x", two)
    retry = worker.arrival("t", two, attempt=1)
    rows = Exchange(changed=[ended(first, "retry"), passing(other, retry)])
    execute(redis, worker.store.exchange(worker.name, worker.number + 1, worker.queues, rows))
    store = peek(redis)
    assert {task: record.nonce for task, record in store.records.items()} == {"t": retry.nonce}
    assert store.used == {"gpu2": 1}


def test_a_permit_may_have_passed_several_times(worker: Caller, one: Limit, redis: Redis) -> None:
    """The call reports only the first and the last of them, or all of them, in order."""
    each = [worker.take("t0", one), *(worker.arrival(f"t{number}", one) for number in range(1, 4))]
    worker.exchange(passed=[passing(a, b) for a, b in itertools.pairwise(each)], ended=[ended(each[-1])])
    assert not peek(redis).records
    assert peek(redis).used == {}


def test_permit_passed_before_other_rows_apply(worker: Caller, one: Limit) -> None:
    """The task that got it may have ended by now, and its slot is for the next."""
    held, to = worker.take("t1", one), worker.arrival("t2", one)
    worker.put("t3", one)
    reply = worker.exchange(1, passed=[passing(held, to)], ended=[ended(to)])
    assert started(reply) == ("t3",)


# -- renewals ----------------------------------------------------------------------------------------------------------


def test_each_gets_its_own_answer(worker: Caller, peer: Caller, two: Limit) -> None:
    """One call renews many; one of them belongs to another worker."""
    ours, theirs = worker.take("t1", two), peer.take("t2", two)
    assert worker.renew(ours, theirs._replace(nonce="aaaaaaaa:ff"), ours) == [1, 0, 1]


def test_nothing_held_is_nothing_renewed(worker: Caller) -> None:
    assert worker.renew() == []


def test_waiting_callers_outside_of_tasks_are_kept(worker: Caller, one: Limit, redis: Redis) -> None:
    """A holder outside of tasks whose process is gone leaves the line after a lease."""
    worker.take("t", one)
    worker.put("w1", one, wait_ms=50, outside=True)
    worker.put("w2", one, wait_ms=50, outside=True)
    before = peek(redis).due("task")
    assert worker.renew_all(waiting=["w1", "unknown"])[1] == [1, 0]
    after = peek(redis).due("task")
    assert after["w1"] >= before["w1"] + 100_000
    assert after["w2"] == before["w2"]
    let_come_due(redis, "task", "w2")
    worker.look()
    assert peek(redis).parked.keys() == {"w1"}, "it leaves nothing to report"


def test_renewal_that_an_emptied_store_gets_late_puts_nothing_back(worker: Caller, two: Limit, redis: Redis) -> None:
    """The holder may have ended since, and the store has lost the call that reported that."""
    held = worker.take("t", two)
    birth = worker.declare(two)
    redis.flushall()
    worker.declare(two, known=birth)
    answers, _, since = worker.renew_all(held, birth=birth)
    assert (answers, since == birth.encode()) == ([3], False)
    assert peek(redis).used == {}
    answers, *_ = worker.renew_all(held, birth=since.decode())
    assert answers == [2], "listed again for this data"
