"""Keeping a permit, and getting it back from a store that lost it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.store.caller import Caller, held_by, message_of
from tests.store.peek import expire, let_come_due, peek

if TYPE_CHECKING:
    from redis import Redis

    from celery_throttle.core.limits import Limit

LOST, RENEWED, PUT_BACK, LATER = 0, 1, 2, 3


def test_a_renewed_lease_begins_again(worker: Caller, one: Limit, redis: Redis) -> None:
    held = worker.take("t", one)
    before = peek(redis).leases["t"]
    expire(redis, "t")
    assert worker.renew(held) == [RENEWED]
    assert peek(redis).leases["t"] >= before
    assert worker.reap() == []


def test_each_gets_its_own_answer(worker: Caller, peer: Caller, two: Limit) -> None:
    """One call renews many; one of them belongs to another worker."""
    ours, theirs = worker.take("t1", two), peer.take("t2", two)
    assert worker.renew(ours, theirs._replace(nonce="aaaaaaaa:ff"), ours) == [RENEWED, LOST, RENEWED]


def test_nothing_held_is_nothing_renewed(worker: Caller) -> None:
    assert worker.renew() == []


def test_holders_put_themselves_back_after_lost_data(worker: Caller, peer: Caller, two: Limit, redis: Redis) -> None:
    """The server came back empty: running tasks count again, even before their limit is declared."""
    held = [worker.take("t1", two), peer.take("t2", two)]
    redis.flushall()
    assert worker.renew(held[0]) == [PUT_BACK]
    assert peer.renew(held[1]) == [PUT_BACK]
    assert worker.renew(held[0]) == [RENEWED]
    assert peek(redis).used == {"gpu2": 2}
    worker.declare(two)
    worker.release(held[0])
    assert peek(redis).holders("gpu2") == ["t2"]


def test_renewal_that_an_emptied_store_gets_late_puts_nothing_back(worker: Caller, two: Limit, redis: Redis) -> None:
    """The holder may have ended since, and the store has lost the call that reported that."""
    held = worker.take("t", two)
    birth = worker.declare(two)
    redis.flushall()
    worker.declare(two, known=birth)
    answers, _, since = worker.renew_all(held, birth=birth)
    assert (answers, since == birth.encode()) == ([LATER], False)
    assert peek(redis).used == {}
    answers, *_ = worker.renew_all(held, birth=since.decode())
    assert answers == [PUT_BACK], "listed again for this data"


def test_full_limit_takes_no_holder_back(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """Another task has the permit by now; the reply reports a lost lease."""
    held = worker.take("t1", one)
    redis.flushall()
    peer.declare(one)
    peer.take("t2", one)
    assert worker.renew(held) == [LOST]
    assert peek(redis).holders("gpu") == ["t2"]


def test_a_run_whose_task_went_back_in_line_takes_it_out_again(worker: Caller, one: Limit, redis: Redis) -> None:
    """Its worker was cut off for a lease and still runs it: it must not run twice."""
    worker.put("t0", one, slots=0)
    (grant,) = worker.look().grants
    expire(redis, "t0")
    worker.reap()
    assert peek(redis).waiting("gpu") == ["t0"]
    held = held_by(grant)
    assert worker.renew(held) == [PUT_BACK]
    store = peek(redis)
    assert store.holders("gpu") == ["t0"]
    assert store.parked == {}
    worker.release(held)
    assert not peek(redis).records


def test_a_run_whose_task_runs_elsewhere_by_now_is_lost(worker: Caller, peer: Caller, two: Limit, redis: Redis) -> None:
    """The permit is that of the other worker, though another one is free."""
    (grant,) = worker.put("t", two, slots=1).grants
    expire(redis, "t")
    (theirs,) = peer.look().grants
    assert worker.renew(grant) == [LOST]
    assert peek(redis).records["t"].nonce == theirs.nonce


def test_a_retry_in_line_is_not_lost_with_the_run_before_it(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """The first attempt lost its lease while its retry waited as its twin, and is renewed before it ends."""
    first = worker.take("t", one)
    peer.put("t", one, attempt=1)
    expire(redis, "t")
    peer.reap()
    worker.renew(first)
    worker.release(first, "retry")
    (grant,) = peer.look().grants
    assert (grant.attempt, grant.message) == (1, message_of("t", 1))


def test_second_delivery_in_line_runs_when_the_first_dies(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """As above, with the same attempt: the first run came back from beyond its lease, and then lost its child."""
    first = worker.take("t", one)
    peer.put("t", one)
    expire(redis, "t")
    peer.reap()
    worker.renew(first)
    worker.release(first, "again")
    assert [grant.task for grant in peer.look().grants] == ["t"]


def test_retry_in_place_of_a_lost_run_is_not_lost_with_it(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """The run went back in line, its retry replaced it there, and then it is renewed after all."""
    (grant,) = worker.put("t", one, slots=1).grants
    expire(redis, "t")
    peer.reap()
    peer.put("t", one, attempt=1)
    held = held_by(grant)
    worker.renew(held)
    worker.release(held, "again")
    (retry,) = peer.look().grants
    assert (retry.attempt, retry.message) == (1, message_of("t", 1))


def test_a_retry_beside_a_lost_run_is_not_lost_with_it(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """The run went back in line with its retry as its twin, and then it is renewed after all."""
    (grant,) = worker.put("t", one, slots=1).grants
    peer.put("t", one, attempt=1)
    expire(redis, "t")
    peer.reap()
    held = held_by(grant)
    worker.renew(held)
    worker.release(held, "again")
    (retry,) = peer.look().grants
    assert (retry.attempt, retry.message) == (1, message_of("t", 1))


def test_a_renewal_that_a_later_call_overtook_puts_nothing_back(worker: Caller, one: Limit, redis: Redis) -> None:
    """It was put together while the task ran, and is carried out after the call that ended it."""
    held = worker.take("t", one)
    number = worker.number
    worker.release(held, "failed")
    assert worker.renew(held, number=number) == [LATER]
    assert not peek(redis).records


def test_renewal_of_a_returned_task_leaves_it_in_line(worker: Caller, one: Limit, redis: Redis) -> None:
    """Else the parked task would be taken for another delivery of itself, and dropped."""
    held = worker.take("t", one)
    number = worker.number
    worker.send_back(held, 0.0)
    assert worker.renew(held, number=number) == [LATER]
    assert peek(redis).parked.keys() == {"t"}
    assert [grant.task for grant in worker.look().grants] == ["t"]


def test_later_unrelated_call_keeps_a_renewal_from_putting_back(worker: Caller, one: Limit, redis: Redis) -> None:
    """The store cannot tell; the next renewal can."""
    held = worker.take("t", one)
    number = worker.number
    expire(redis, "t")
    worker.look()
    assert worker.renew(held, number=number) == [LATER]
    assert worker.renew(held) == [PUT_BACK]
    assert worker.renew(held, number=number) == [RENEWED], "held permits are renewed, for any time of the request"


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


def test_task_back_in_line_is_not_put_back(worker: Caller, one: Limit, redis: Redis) -> None:
    """Its renewal was put together during the call that reports it: see `worker/store_side/renewals.py`."""
    run = worker.take("t", one)
    worker.send_back(run, 0.0)
    assert worker.renew(run, number=0) == [LATER]
    assert not peek(redis).leases
