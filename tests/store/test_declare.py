"""Declared limits, and a store that was away or emptied: what no story has, such as births and many workers."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from celery_throttle.core.dedup import LockUntil
from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import Needs
from celery_throttle.store.exchange_reply import Answer
from celery_throttle.store.scripts import execute
from tests.primitives.faults import StoreClock
from tests.store.caller import Caller, Rows, ended
from tests.store.cost import commands
from tests.store.hints import Hints
from tests.store.lock_caller import LockCaller, plan_of
from tests.store.peek import KEY, be_away, lapse, peek
from tests.store.terms_caller import terms


def test_a_worker_that_comes_back_does_not_overrule_a_newer_one(worker: Caller, peer: Caller, redis: Redis) -> None:
    """It lost its connection for a moment; meanwhile another one started with a new number."""
    birth = worker.declare(Limit("gpu", 2))
    peer.declare(Limit("gpu", 5))
    assert worker.declare(Limit("gpu", 2), known=birth) == birth
    assert peek(redis).limits == {"gpu": 5}


def test_a_raised_limit_wakes_all_its_keys(worker: Caller, peer: Caller, redis: Redis) -> None:
    """There may be many: each worker that calls continues with them, page by page."""
    tenant = Limit("tenant", 1, key="tenant")
    needs = [terms(tenant).needs({"keys": {"tenant": f"{number:03}"}}) for number in range(450)]
    for number, each in enumerate(needs):
        worker.take(f"a{number}", each)
        worker.put(f"b{number}", each)
    worker.declare(Limit("tenant", 2, key="tenant"))
    ran: list[str] = []
    for _ in range(80):
        reply = peer.look(50)
        ran += [grant.task for grant in reply.grants]
        assert reply.more or 0 < reply.wait < 0.1 or len(ran) == len(needs)
    assert len(ran) == len(needs)
    assert not peek(redis).due("limit")


def test_limit_raised_after_one_with_many_keys_wakes_its_task(worker: Caller, one: Limit) -> None:
    """The call has looked at as much as one call does, and at nothing of this limit."""
    tenant = Limit("tenant", 1, key="tenant")
    needs = [terms(tenant).needs({"keys": {"tenant": f"{number:02}"}}) for number in range(25)]
    for number, each in enumerate(needs):
        worker.take(f"a{number}", each)
        worker.put(f"b{number}", each)
    worker.take("a", one)
    worker.put("b", one)
    worker.declare(Limit("tenant", 2, key="tenant"), Limit(one.name, 2))
    assert set(worker.look_on(30)) == {"b", *(f"b{number}" for number in range(25))}


def test_changed_declaration_looks_at_no_line_while_no_task_is_parked(worker: Caller, redis: Redis) -> None:
    worker.declare(Limit("gpu", 2))
    with commands(redis) as made:
        worker.declare(Limit("gpu", 3))
    assert "zrangebylex" not in made


def test_each_worker_learns_that_the_store_was_emptied(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """No connection broke, and another worker came first."""
    birth = worker.declare(one)
    held = worker.take("t1", one)
    redis.flushall()
    new = peer.declare(one, known=birth)
    before = peek(redis)

    def say(known: str) -> Any:
        call = worker.store.exchange(worker.name, 9, ("q",), Rows(1, ended=[ended(held)]).exchange, known)
        return execute(redis, call)

    assert say(birth) == [b"declare"]
    assert peek(redis).hashes == before.hashes, "and nothing of it was carried out"
    assert worker.declare(one, known=birth) == new
    assert worker.renew(held) == [2]
    assert say(new)[0] == 9
    assert not peek(redis).records


def test_births_in_the_same_millisecond_differ(worker: Caller, redis: Redis, clock: StoreClock) -> None:
    clock.set(1_000_000_000_000_000)
    birth = worker.declare()
    redis.flushall()
    clock.set(1_000_000_000_000_001)
    assert worker.declare(known=birth) != birth


def test_all_workers_learn_at_once_of_other_data(
    worker: Caller, peer: Caller, one: Limit, redis: Redis, hints: Hints
) -> None:
    births = [worker.declare(one), peer.declare(one)]
    redis.flushall()
    births.append(peer.declare(one, known=births[0]))
    worker.declare(one, known=births[0])
    assert hints.take() == [f"birth {births[0]}", f"birth {births[2]}"]


def test_a_new_store_grants_at_once(worker: Caller, peer: Caller, two: Limit, redis: Redis) -> None:
    """Workers that start have seen no other birth, so there is no holder to wait for."""
    births = {worker.declare(two), peer.declare(two)}
    assert len(births) == 1
    worker.take("t1", two)
    assert worker.declare(two, known=births.pop()) == peek(redis).meta["birth"]
    peer.take("t2", two)


def test_a_call_to_an_emptied_store_is_not_carried_out(worker: Caller, one: Limit, redis: Redis) -> None:
    """Its worker first has to declare its limits and the birth that it has seen."""
    held = worker.take("t1", one)
    redis.flushall()
    said = Rows(1, asked=[worker.arrival("t2", one)], parked=[worker.parcel("t3", one)], ended=[ended(held)])
    assert worker.raw(said, 9) == [b"declare"]
    assert redis.dbsize() == 0


def test_worker_gets_the_effect_of_its_declaration(worker: Caller, peer: Caller) -> None:
    """So that two releases that disagree are noticed."""
    worker.declare(Limit("gpu", 2), Limit("same", 1))
    assert peer.declare_all(Limit("gpu", 5), Limit("same", 1))[1:] == ["gpu", "2"]


def test_declaration_of_a_worker_goes_when_its_time_is_over(worker: Caller, one: Limit, redis: Redis) -> None:
    worker.declare(one)
    field = f"declared:{worker.name}"
    assert redis.hexists(KEY["meta"], field)
    lapse(redis, f"meta:{field}")
    worker.reap()
    assert not redis.hexists(KEY["meta"], field)


def test_undeclared_limit_grants_nothing(worker: Caller, one: Limit) -> None:
    """A worker declares its limits before it asks; a call never declares a number."""
    worker.declare(Limit("other", 1))
    arrival = worker.arrival("t", Needs(("gpu",), "1:gpu"))
    assert worker.exchange(asked=[arrival]).asked == (Answer.MUST_PARK,)
    worker.take("t", one)


# -- outages -----------------------------------------------------------------------------------------------------------


MOMENT_MS = 4000


def test_call_of_one_of_many_workers_proves_a_lost_lease(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """Also one that is not among the first that a script reads."""
    worker.take("t1", one)
    peer.put("t2", one)
    be_away(redis)
    names = [f"old{number}" for number in range(300)]
    redis.hset(KEY["workers"], mapping=dict.fromkeys(names, '{"number":1,"since":1}'))
    redis.zadd(KEY["ends"], {f"workers:{name}": 9e12 for name in names})
    _, first = redis.hscan(KEY["workers"], 0, count=100)
    called = next(name for name in names if name.encode() not in first)
    redis.hset(KEY["workers"], called, f'{{"number":1,"since":{peek(redis).now}}}')
    assert [grant.task for grant in peer.look().grants] == ["t2"]


def test_new_worker_takes_none_for_lost_after_an_outage_as_long_as_a_short_lease(
    redis: Redis, one: Limit, clock: StoreClock
) -> None:
    """The store was away for longer than the lease, and for less than any worker is silent otherwise."""
    worker, new = (Caller(redis, name, "q", lease=3.0) for name in ("aaaaaaaa", "cccccccc"))
    worker.take("t", one)
    clock.move(3_500_000)
    assert new.look().reclaimed == ()
    clock.move((MOMENT_MS + 1) * 1000)
    assert [each.task for each in new.look().reclaimed] == ["t"]


# -- identity locks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lock_until", ["finished", "started"])
def test_a_lock_that_ends_soon_outlives_the_moment(once: LockCaller, redis: Redis, lock_until: LockUntil) -> None:
    once.start("first", plan_of(lock_until=lock_until))
    be_away(redis)
    redis.zadd(KEY["ends"], {"locks:same": peek(redis).now + 1000})
    once.come_back()
    store = peek(redis)
    assert store.lock_ends() > store.leases["first"] > store.now
