"""A permit that passed from a run that ended to one that began in the same worker, reported afterwards."""

from __future__ import annotations

import itertools

from redis import Redis

from celery_throttle.core.facts import Result
from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange import Arrival, DeliveryChange, Exchange
from celery_throttle.store.scripts import execute
from tests.store.caller import Caller, ended, message_of, passed, started
from tests.store.peek import expire, peek


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


def test_the_other_holds_it_then(worker: Caller, one: Limit, redis: Redis) -> None:
    """The store acts as if it had asked for it, and drops its outcome."""
    held, to = worker.take("t1", one), worker.arrival("t2", one, attempt=2)
    worker.exchange(passed=[passing(held, to)])
    store = peek(redis)
    assert (store.used, store.holders("gpu")) == ({"gpu": 1}, ["t2"])
    assert (store.records["t2"].nonce, store.records["t2"].attempt) == (to.nonce, 2)
    assert worker.renew(to) == [1]
    worker.release(to)
    assert not peek(redis).records


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


def test_a_lost_lease_has_nothing_to_pass_on(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """Another task has the permit by then; the one that runs is put back only if there is room."""
    held, to = worker.take("t1", one), worker.arrival("t2", one)
    expire(redis, "t1")
    peer.reap()
    theirs = peer.take("t3", one)
    worker.exchange(passed=[passing(held, to)])
    assert peek(redis).holders("gpu") == ["t3"]
    assert worker.renew(to) == [0]
    peer.release(theirs)
    assert worker.renew(to) == [2]
    assert peek(redis).holders("gpu") == ["t2"]


def test_one_that_is_parked_elsewhere_waits_for_this_run(
    worker: Caller, peer: Caller, one: Limit, two: Limit, redis: Redis
) -> None:
    """The broker delivered it twice: the second delivery does not run beside it, nor after its success."""
    full = peer.take("x", one)
    held = worker.take("t1", two)
    peer.put("t2", one)
    to = worker.arrival("t2", two)
    worker.exchange(passed=[passing(held, to)])
    store = peek(redis)
    assert store.holders("gpu2") == ["t2"]
    assert (store.parked, store.second_messages) == ({}, {"t2": message_of("t2")})
    assert started(peer.release(full, slots=2)) == ()
    worker.release(to)
    assert not peek(redis).records


def test_one_that_runs_elsewhere_keeps_its_permit_there(worker: Caller, peer: Caller, two: Limit, redis: Redis) -> None:
    """It was delivered twice again: the permit is given back, and the reply reports a lost lease."""
    held, theirs = worker.take("t1", two), peer.take("t2", two)
    to = worker.arrival("t2", two)
    worker.exchange(passed=[passing(held, to)])
    store = peek(redis)
    assert (store.used, store.records["t2"].nonce) == ({"gpu2": 1}, theirs.nonce)
    assert worker.renew(to) == [0]


def test_second_delivery_of_the_ended_one_follows_its_result(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    for result, attempt, goes_on in ((Result.SUCCESS, 0, False), (Result.RETRY, 1, True), (Result.FAILURE, 0, False)):
        redis.flushall()
        worker.declare(one)
        held, to = worker.take("t1", one), worker.arrival("t2", one)
        peer.put("t1", one, attempt=attempt)
        worker.exchange(passed=[passing(held, to, result)])
        assert (peek(redis).parked.keys() == {"t1"}) == goes_on
        assert peek(redis).seconds == {}


def test_the_same_call_again_passes_nothing_twice(worker: Caller, two: Limit, redis: Redis) -> None:
    held, to = worker.take("t1", two), worker.arrival("t2", two)
    worker.exchange(passed=[passing(held, to)])
    worker.again()
    assert peek(redis).used == {"gpu2": 1}
    assert peek(redis).holders("gpu2") == ["t2"]


def test_state_of_its_bucket_is_returned(worker: Caller, one: Limit) -> None:
    """The reply shows a new line to a worker that passes permits on."""
    held, to = worker.take("t1", one), worker.arrival("t2", one)
    assert worker.exchange(passed=[passing(held, to)]).closed == ("gpu",)


def test_renewal_of_a_past_holder_puts_nothing_back(worker: Caller, two: Limit, redis: Redis) -> None:
    """It was put together before, and comes after."""
    held, to = worker.take("t1", two), worker.arrival("t2", two)
    number = worker.number
    worker.exchange(passed=[passing(held, to)])
    assert worker.renew(held, number=number) == [3]
    assert peek(redis).holders("gpu2") == ["t2"]


def test_one_whose_permit_was_passed_on_ends_it_as_well(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    (first,) = worker.put("t", one, slots=1).grants
    worker.look(0)
    expire(redis, "t")
    peer.look(0)
    worker.exchange(passed=[passed("t", first.nonce, Result.SUCCESS, worker.arrival("next", one))])
    store = peek(redis)
    assert (store.records, store.seconds, store.messages, store.ran, store.used) == ({}, {}, {}, {}, {})
