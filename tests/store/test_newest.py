"""The newest call, which takes the place of those that wait: replace and keep_last."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_throttle.store.identity_locks import CLAIMED, OURS, REPLACED, TAKEN
from tests.store.caller import ended, started
from tests.store.lock_caller import (
    KEEP_LAST,
    PLAN,
    RAISE,
    REPLACE,
    SKIP,
    LockCaller,
    end_lease,
    end_lock,
    plan_of,
    state_of,
    told,
)
from tests.store.peek import check, peek

if TYPE_CHECKING:
    from redis import Redis

    from celery_throttle.core.dedup import LockPlan
    from celery_throttle.core.limits import Limit
    from tests.store.steering import Steering


@pytest.fixture
def worker(redis: Redis) -> LockCaller:
    return LockCaller(redis, "aaaaaaaa", "q")


@pytest.fixture
def peer(redis: Redis) -> LockCaller:
    return LockCaller(redis, "bbbbbbbb", "q")


@pytest.mark.parametrize("plan", [REPLACE, KEEP_LAST])
def test_the_newest_replaces_one_that_is_queued(worker: LockCaller, plan: object) -> None:
    before = worker.claim("t1", PLAN)[2]
    answer, other, claim = worker.claim("t2", REPLACE if plan is REPLACE else KEEP_LAST)
    assert (answer, other) == (REPLACED, "t1")
    assert int(claim) > int(before)
    assert state_of(worker) == ("t2", "queued")


def test_one_that_runs_is_not_replaced(worker: LockCaller) -> None:
    worker.start("t1", PLAN)
    assert worker.claim("t2", REPLACE)[:2] == (TAKEN, "t1")
    assert state_of(worker) == ("t1", "running")


def test_one_that_is_next_already_is_not_replaced_by_itself(worker: LockCaller) -> None:
    """The publisher revokes the one that is next."""
    worker.start("t1", PLAN)
    for _ in range(2):
        assert worker.claim("t2", KEEP_LAST)[:2] == (CLAIMED, "")


def test_parked_task_gets_its_replacement(worker: LockCaller, one: Limit) -> None:
    """As soon as the newest has come: it does not wait for a permit any more."""
    worker.start("t0", plan_of("other"), one)
    worker.arrive("t1", worker.publish("t1", REPLACE), one)
    plan = worker.publish("t2", REPLACE)
    assert worker.look_once(2) == ()
    assert [each[:2] for each in told(worker.arrive("t2", plan, one, slots=1))] == [("t1", "replaced")]
    assert state_of(worker) == ("t2", "queued")


def test_parked_one_does_not_start_during_the_newest_publish(worker: LockCaller, one: Limit) -> None:
    other = worker.start("t0", plan_of("other"), one)
    worker.arrive("t1", worker.publish("t1", REPLACE), one)
    plan = worker.publish("t2", REPLACE)
    assert worker.end(other, slots=2) == ()
    worker.start("t2", plan, one)
    assert told(worker.look_once(2)) == [("t1", "replaced", "t2")]


def test_unpublished_newest_replaces_no_task(worker: LockCaller, one: Limit) -> None:
    other = worker.start("t0", plan_of("other"), one)
    plan = worker.publish("t1", REPLACE)
    worker.arrive("t1", plan, one)
    for newest in ("t2", "t3"):
        worker.publish(newest, REPLACE)
    assert worker.give_up("same", "t3") == 1
    assert worker.claim("t1", REPLACE) == (OURS, "", plan.claim)
    assert told(worker.end(other, slots=2)) == [("t1", "run", "")]


def test_unpublished_last_replaces_no_task(worker: LockCaller) -> None:
    held = worker.start("t1", worker.publish("t1", KEEP_LAST))
    assert worker.arrive("t2", worker.publish("t2", KEEP_LAST)) == ()
    worker.publish("t3", KEEP_LAST)
    assert worker.give_up("same", "t3") == 1
    assert worker.look_once(2) == ()
    assert told(worker.end(held, slots=2)) == [("t2", "run", "")]


@pytest.mark.parametrize("plan", [REPLACE, KEEP_LAST])
def test_unpublished_newest_replaces_no_task_whose_turn_came(worker: LockCaller, one: Limit, plan: LockPlan) -> None:
    other = worker.start("t0", plan_of("other"), one)
    worker.arrive("t1", worker.publish("t1", plan), one)
    for newest in ("t2", "t3"):
        worker.publish(newest, plan)
        assert worker.end(other, slots=2) == ()
        other = worker.start("t0", plan_of("other"), one)
    assert worker.give_up("same", "t3") == 1
    assert worker.look_once(2) == ()
    assert told(worker.end(other, slots=2)) == [("t1", "run", "")]


def test_unpublished_last_replaces_no_task_whose_first_ended(worker: LockCaller) -> None:
    held = worker.start("t1", worker.publish("t1", KEEP_LAST))
    assert worker.arrive("t2", worker.publish("t2", KEEP_LAST)) == ()
    worker.publish("t3", KEEP_LAST)
    assert worker.end(held, slots=2) == ()
    assert worker.give_up("same", "t3") == 1
    assert told(worker.look_once(2)) == [("t2", "run", "")]


def test_newest_of_a_dead_publisher_replaces_no_task(worker: LockCaller, one: Limit, redis: Redis) -> None:
    other = worker.start("t0", plan_of("other"), one)
    worker.arrive("t1", worker.publish("t1", REPLACE), one)
    worker.publish("t2", REPLACE)
    assert worker.end(other, slots=2) == ()
    end_lock(redis)
    assert told(worker.look_once(2)) == [("t1", "run", "")]


def test_last_one_replaces_the_one_before_after_a_lost_first(worker: LockCaller) -> None:
    """It is to retry, and revoked then, while the last one is on its way."""
    held = worker.start("t1", worker.publish("t1", KEEP_LAST))
    worker.arrive("t2", worker.publish("t2", KEEP_LAST))
    last = worker.publish("t3", KEEP_LAST)
    worker.end(held, "retry")
    assert worker.give_up("same", "t1") == 1
    assert worker.look_once(2) == ()
    assert worker.start("t3", last)
    assert told(worker.look_once(2)) == [("t2", "replaced", "t3")]


def test_follower_of_a_replaced_retry_gets_its_end(worker: LockCaller) -> None:
    held = worker.start("t1", worker.publish("t1", REPLACE))
    assert worker.arrive("t2", worker.publish("t2", REPLACE)) == ()
    worker.end(held, "retry")
    newest = worker.publish("t3", REPLACE)
    assert worker.look_once(2) == ()
    worker.start("t3", newest)
    assert told(worker.look_once(2)) == [("t2", "replaced", "t3")]


def test_unpublished_newest_replaces_no_follower_of_a_retry(
    worker: LockCaller,
) -> None:
    held = worker.start("t1", worker.publish("t1", REPLACE))
    assert worker.arrive("t2", worker.publish("t2", REPLACE)) == ()
    worker.end(held, "retry")
    worker.publish("t3", REPLACE)
    assert worker.look_once(2) == ()
    worker.give_up("same", "t3")
    assert told(worker.look_once(2)) == [("t2", "run", "")]


@pytest.mark.parametrize("comes", [False, True])
@pytest.mark.parametrize("plan", [PLAN, RAISE, SKIP])
def test_newest_call_replaces_any_parked_one_after_its_arrival(
    worker: LockCaller, one: Limit, plan: LockPlan, *, comes: bool
) -> None:
    """``on_conflict`` is given with the call."""
    other = worker.start("t0", plan_of("other"), one)
    worker.arrive("t1", worker.publish("t1", plan), one)
    newest = worker.publish("t2", REPLACE)
    assert worker.end(other, slots=2) == ()
    if comes:
        worker.start("t2", newest, one)
        assert told(worker.look_once(2)) == [("t1", "replaced", "t2")]
    else:
        worker.give_up("same", "t2")
        assert told(worker.look_once(2)) == [("t1", "run", "")]


def test_next_one_runs_though_another_has_the_first_outcome(worker: LockCaller) -> None:
    held = worker.start("t1", worker.publish("t1", KEEP_LAST))
    worker.arrive("t2", worker.publish("t2", KEEP_LAST))
    third = worker.publish("t3", PLAN, awaited=True)
    (second,) = worker.end(held, slots=5)
    assert told((second,)) == [("t2", "run", "")]
    assert told(worker.arrive("t3", third, slots=1)) == [("t3", "conclude", "t1")]
    worker.end(second)
    assert state_of(worker) is None


def test_next_one_runs_though_an_older_one_is_published_again(
    worker: LockCaller, peer: LockCaller, redis: Redis
) -> None:
    """That has lost its lease, and its process publishes its retry."""
    old = worker.publish("t0", KEEP_LAST)
    end_lease(redis, worker.start("t0", old))
    held = peer.start("t1", peer.publish("t1", KEEP_LAST))
    peer.arrive("t2", peer.publish("t2", KEEP_LAST))
    worker.publish("t0", old, awaited=True)
    assert told(peer.end(held, slots=5)) == [("t2", "run", "")]


def test_unlock_while_the_newest_is_on_its_way_strands_no_task(worker: LockCaller, one: Limit, redis: Redis) -> None:
    """One that had begun is back in line, and another is to run next."""
    (held,) = worker.put_once("t1", worker.publish("t1", KEEP_LAST), one, slots=1)
    worker.arrive("t2", worker.publish("t2", KEEP_LAST), one)
    worker.end(held, "requeue")
    newest = worker.publish("t3", KEEP_LAST)
    assert worker.unlock("same") == 1
    (second,) = worker.arrive("t3", newest, one)
    assert (second.task, second.verdict) == ("t2", "run"), "in the slot that the newest leaves"
    assert [(each.task, each.verdict) for each in worker.look_once(5)] == [("t1", "replaced")]
    assert [(each.task, each.verdict) for each in worker.end(second, slots=5)] == [("t3", "run")]
    assert not peek(redis).parked


def test_the_lock_of_the_next_one_lasts_until_its_eta(worker: LockCaller) -> None:
    held = worker.start("t1", worker.publish("t1", KEEP_LAST))
    worker.claim("t2", KEEP_LAST, least=100 * 3600)
    worker.end(held)
    found = worker.locked()
    assert found
    assert (found.task_id, found.expires_in > 99 * 3600) == ("t2", True)


@pytest.mark.parametrize("how", ["revoked", "dropped"])
def test_republished_replaced_task_can_be_withdrawn(
    worker: LockCaller, one: Limit, redis: Redis, steering: Steering, how: str
) -> None:
    worker.start("t0", plan_of("other"), one)
    worker.arrive("t1", worker.publish("t1", REPLACE), one)
    worker.publish("t2", REPLACE)
    worker.publish("t1", REPLACE)
    if how == "revoked":
        worker.withdraw("t1")
    else:
        steering.drop(one, "t1")
    check(peek(redis))
    assert worker.locked() is None


def test_republished_replaced_task_is_the_newest(worker: LockCaller, one: Limit) -> None:
    other = worker.start("t0", plan_of("other"), one)
    worker.arrive("t1", worker.publish("t1", REPLACE), one)
    plan = worker.publish("t2", REPLACE)
    assert worker.claim("t1", REPLACE)[:2] == (REPLACED, "t2")
    assert told(worker.arrive("t2", plan, one, slots=1)) == [("t2", "replaced", "t1")]
    assert told(worker.end(other, slots=2)) == [("t1", "run", "")]


def test_task_that_was_next_does_not_replace_its_replacement(worker: LockCaller) -> None:
    """It comes while the one that had begun waits for its next delivery."""
    held = worker.start("t1", worker.publish("t1", KEEP_LAST))
    old, new = worker.publish("t2", KEEP_LAST), worker.publish("t3", KEEP_LAST)
    worker.end(held, "retry")
    assert told(worker.arrive("t2", old, slots=1)) == [("t2", "replaced", "t1")]
    assert told(worker.arrive("t3", new, slots=1)) == [("t3", "run", "")]


@pytest.mark.parametrize("plan", [REPLACE, KEEP_LAST])
def test_retry_without_its_lock_replaces_no_newer_task(worker: LockCaller, redis: Redis, plan: LockPlan) -> None:
    """Its worker was silent for a lease, and another call was published meanwhile."""
    first = worker.publish("t1", plan)
    end_lease(redis, worker.start("t1", first))
    new = worker.publish("t2", plan)
    again = worker.publish("t1", first)
    newest = worker.start("t2", new)
    assert told(worker.arrive("t1", again, slots=1)) == [("t1", "replaced", "t2")]
    worker.end(newest)


def test_one_that_was_replaced_on_its_way_does_not_run(worker: LockCaller) -> None:
    old = worker.publish("t1", REPLACE)
    new = worker.publish("t2", REPLACE)
    assert told(worker.arrive("t1", old, slots=1)) == [("t1", "replaced", "t2")]
    worker.start("t2", new)


def test_later_publish_is_newer_though_the_lock_had_ended(worker: LockCaller, one: Limit, redis: Redis) -> None:
    old = worker.publish("t1", REPLACE)
    end_lock(redis)
    new = worker.publish("t2", REPLACE)
    end_lock(redis)
    other = worker.start("other", plan_of("other"), one)
    worker.arrive("t1", old, one)
    worker.start("t2", new)
    assert [each[:2] for each in told(worker.end(other, slots=2))] == [("t1", "replaced")]


def test_a_newer_one_that_arrives_first_is_the_last_one(worker: LockCaller) -> None:
    """The order of publishing counts."""
    held = worker.start("t1", worker.publish("t1", KEEP_LAST))
    second = worker.publish("t2", KEEP_LAST)
    third = worker.publish("t3", KEEP_LAST)
    assert worker.arrive("t3", third) == ()
    assert told(worker.arrive("t2", second, slots=1)) == [("t2", "replaced", "t1")]
    assert told(worker.end(held, slots=2)) == [("t3", "run", "")]


def test_lock_of_the_next_one_lasts_as_long_after_its_arrival(worker: LockCaller) -> None:
    """It may wait until it expires."""
    held = worker.start("t1", worker.publish("t1", KEEP_LAST))
    worker.claim("t2", KEEP_LAST, least=100 * 3600)
    worker.arrive("t2", KEEP_LAST)
    worker.end(held)
    found = worker.locked()
    assert found
    assert (found.task_id, found.expires_in > 99 * 3600) == ("t2", True)


def test_a_last_one_has_not_come_when_the_first_comes_again(worker: LockCaller) -> None:
    plan = worker.publish("t1", KEEP_LAST)
    held = worker.start("t1", plan)
    worker.arrive("t2", worker.publish("t2", KEEP_LAST))
    worker.publish("t3", KEEP_LAST)
    worker.end(held, "retry")
    again = worker.start("t1", plan, attempt=1)
    assert worker.end(again, slots=2) == ()
    assert worker.give_up("same", "t3") == 1
    assert told(worker.look_once(2)) == [("t2", "run", "")]


def test_task_that_makes_way_as_it_could_start_leaves_its_lane(
    worker: LockCaller, one: Limit, two: Limit, redis: Redis
) -> None:
    """Both could start, in one slot. The older call has the lock, since that of the newer one was over for a moment."""
    held = [worker.take("h1", one), *(worker.take(f"h{number}", two) for number in (2, 3))]
    older = worker.publish("older", REPLACE)
    newer = worker.publish("newer", REPLACE)
    worker.put_once("newer", newer, two)
    end_lock(redis)
    worker.put_once("older", older, one)
    reply = worker.exchange(1, ended=[ended(each) for each in held])
    assert started(reply) == ("newer",)
    assert peek(redis).lanes.keys() == {"\0q"}
    assert told(worker.look_once()) == [("older", "replaced", "newer")]
