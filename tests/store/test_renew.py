"""Keeping a permit, and getting it back from a store that lost it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.store.caller import Caller, Held, message_of
from tests.store.peek import expire, peek

if TYPE_CHECKING:
    from redis import Redis

    from celery_throttle.core.limits import Limit

LOST, RENEWED, PUT_BACK = 0, 1, 2


def test_a_renewed_lease_begins_again(worker: Caller, one: Limit, redis: Redis) -> None:
    held = worker.take("t", one)
    before = peek(redis).leases["t"]
    expire(redis, "t")
    assert worker.renew(held) == [RENEWED]
    assert peek(redis).leases["t"] >= before
    assert worker.reap() == []


def test_each_gets_its_own_answer(worker: Caller, peer: Caller, two: Limit) -> None:
    """Many in one call; one of them belongs to somebody else."""
    ours, theirs = worker.take("t1", two), peer.take("t2", two)
    assert worker.renew(ours, theirs._replace(nonce="aaaaaaaa:ff"), ours) == [RENEWED, LOST, RENEWED]


def test_nothing_held_is_nothing_renewed(worker: Caller) -> None:
    assert worker.renew() == []


def test_holders_put_themselves_back_after_the_store_lost_everything(
    worker: Caller, peer: Caller, two: Limit, redis: Redis
) -> None:
    """The server came back empty: what runs counts again, and the limit is known again."""
    held = [worker.take("t1", two), peer.take("t2", two)]
    redis.flushall()
    assert worker.renew(held[0]) == [PUT_BACK]
    assert peer.renew(held[1]) == [PUT_BACK]
    assert worker.renew(held[0]) == [RENEWED]
    assert peek(redis).used == {"gpu2": 2}
    assert peek(redis).limits == {"gpu2": 2}
    worker.release(held[0])
    assert peek(redis).holders("gpu2") == ["t2"]


def test_nobody_is_put_back_into_a_full_limit(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """Somebody else has the permit by now; the worker is told that it is lost."""
    held = worker.take("t1", one)
    redis.flushall()
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
    held = Held("t0", grant.nonce, one)
    assert worker.renew(held) == [PUT_BACK]
    store = peek(redis)
    assert store.holders("gpu") == ["t0"]
    assert store.line == ()
    worker.release(held)
    assert not peek(redis).records


def test_a_run_whose_task_runs_elsewhere_by_now_is_lost(worker: Caller, peer: Caller, two: Limit, redis: Redis) -> None:
    """The permit is that of the other worker, though another one is free."""
    (grant,) = worker.put("t", two, slots=1).grants
    expire(redis, "t")
    (theirs,) = peer.look().grants
    assert worker.renew(Held("t", grant.nonce, two)) == [LOST]
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
    worker.release(first, "again")
    (grant,) = peer.look().grants
    assert (grant.attempt, grant.message) == (1, message_of("t", 1))


def test_a_second_delivery_in_line_runs_when_the_first_dies_after_all(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """As above, with the same attempt: the first run came back from beyond its lease, and then lost its child."""
    first = worker.take("t", one)
    peer.put("t", one)
    expire(redis, "t")
    peer.reap()
    worker.renew(first)
    worker.release(first, "again")
    assert [grant.task_id for grant in peer.look().grants] == ["t"]


def test_a_retry_that_took_the_place_of_a_lost_run_is_not_lost_with_it(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """The run went back in line, its retry replaced it there, and then it is renewed after all."""
    (grant,) = worker.put("t", one, slots=1).grants
    expire(redis, "t")
    peer.reap()
    peer.put("t", one, attempt=1)
    held = Held("t", grant.nonce, one)
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
    held = Held("t", grant.nonce, one)
    worker.renew(held)
    worker.release(held, "again")
    (retry,) = peer.look().grants
    assert (retry.attempt, retry.message) == (1, message_of("t", 1))
