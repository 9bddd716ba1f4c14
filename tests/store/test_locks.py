"""Identity locks: what no story of test_lock_stories.py has, such as counts, times, and ids of any form."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from kombu.message import Message
from redis import Redis

from celery_throttle.core.dedup import LockUntil, OnConflict
from celery_throttle.core.limits import Limit
from celery_throttle.store import identity_locks
from celery_throttle.store.calls import CLAIMED_FOR
from celery_throttle.store.exchange import DeliveryChange
from celery_throttle.store.exchange_reply import Answer, LockState
from celery_throttle.store.identity_locks import CLAIMED, REPLACED, TAKEN, LockStatus, read_locks
from celery_throttle.store.parcel import pack
from tests.store.caller import ENDS, started
from tests.store.cost import commands
from tests.store.lock_caller import PLAN, REPLACE, LockCaller, Started, end_lease, plan_of, state_of
from tests.store.peek import KEY, check_empty, lapse, peek
from tests.store.steering import Steering


@pytest.fixture
def peer(redis: Redis) -> LockCaller:
    return LockCaller(redis, "bbbbbbbb", "q")


# -- publishing ---------------------------------------------------------------------------------------------------


def test_the_first_claim_takes_the_lock(once: LockCaller) -> None:
    answer, other, claim = once.claim("t1", PLAN)
    assert (answer, other) == (CLAIMED, "")
    assert int(claim) > 0
    found = once.locked()
    assert found
    assert (found.task_id, found.state, found.fencing_token, found.next_id) == ("t1", "queued", 0, None)
    assert 9 < found.expires_in <= CLAIMED_FOR


def test_an_id_may_be_anything(once: LockCaller) -> None:
    strange = ' 1 2 "\u00e9\n\\'
    once.claim(strange, PLAN)
    assert once.claim("t2", PLAN) == (TAKEN, strange, "0")
    assert once.claim("t3", REPLACE)[:2] == (REPLACED, strange)


@pytest.mark.parametrize("identity", ["x" * 40, '"]' * 20, "\u00e9" * 40])
def test_an_identity_that_a_header_brings_may_be_anything(once: LockCaller, identity: str) -> None:
    plan = replace(PLAN, identity=identity)
    assert once.claim("t1", plan)[0] == CLAIMED
    assert once.claim("t2", plan) == (TAKEN, "t1", "0")


# -- at the gate ---------------------------------------------------------------------------------------------------


def test_tokens_grow_when_the_clock_was_set_back(once: LockCaller, redis: Redis) -> None:
    ahead = 4 * once.start("t1", PLAN).token  # a number that is exact in Lua
    redis.hset(KEY["meta"], "stamp", str(ahead))
    assert once.start("t2", plan_of("other")).token > ahead


@pytest.mark.parametrize("outcome", ["done", "ignored"])
def test_more_duplicates_than_fit_in_one_reply(once: LockCaller, one: Limit, redis: Redis, outcome: str) -> None:
    """They have the outcome, too; or wait for the one of them that runs now."""
    held = once.start("t0", PLAN)
    tasks = [f"t{number}" for number in range(1, 702)]
    while tasks:
        some, tasks = tasks[:50], tasks[50:]
        once.exchange(parked=[once.parcel(task, one, lock=PLAN.spec) for task in some])
    once.end(held, outcome)
    for _ in range(12):  # each call moves on some of them
        once.look(0)
    verdicts = Counter(record.raw["lock"]["verdict"] for record in peek(redis).parked.values())
    firsts = Counter(record.raw["lock"]["first"] for record in peek(redis).parked.values())
    if outcome == "done":
        assert (verdicts, firsts) == ({"conclude": 701}, {"t0": 701})
        assert not peek(redis).awaited, "none is left that needs the outcome later"
    else:
        assert (verdicts, firsts) == ({"run": 1, "follow": 700}, {"": 1, "t1": 700})


def test_only_its_holder_frees_a_lock(once: LockCaller) -> None:
    held = once.start("t1", PLAN)
    for task, nonce in (("t1", "dddddddd:ff"), ("t2", held.nonce)):
        once.exchange(ended=[DeliveryChange("ended", task, 0, nonce, facts=ENDS["done"])])
    assert state_of(once) == ("t1", "running")


# -- how long ----------------------------------------------------------------------------------------------------


def test_until_started_follower_waits_as_long_as_the_first_runs(
    once: LockCaller, peer: LockCaller, redis: Redis
) -> None:
    plan = plan_of(lock_until="started")
    claimed = once.publish("t1", plan)
    assert peer.arrive("t2", plan) == ()
    held = once.start("t1", claimed)
    redis.zadd(KEY["ends"], {"locks:same": peek(redis).now + 1000})
    assert once.renew_once(held) == 1
    store = peek(redis)
    assert store.lock_ends() >= store.leases["t1"]


def test_duplicates_get_the_loss_of_the_result(once: LockCaller, peer: LockCaller) -> None:
    """One that waits, one that a worker finds later, and one that is published."""
    plan = plan_of(remember=60)
    held = once.start("t1", plan)
    assert peer.arrive("t2", plan) == ()
    assert once.succeeded(held, "same", 60, lost=True) == 1
    once.end(held)
    for task in ("t2", "t3"):
        (grant,) = peer.look(1).grants if task == "t2" else peer.put(task, None, lock=plan.spec, slots=1).grants
        assert isinstance(grant.lock, LockState)
        assert (grant.task, grant.lock.verdict, grant.lock.first, grant.lock.lost) == (task, "conclude", "t1", True)
    assert once.claim("t4", plan)[:2] == (identity_locks.LOST, "t1")


# -- leases ------------------------------------------------------------------------------------------------------


def test_locks_that_end_together_each_go_to_their_follower(once: LockCaller, redis: Redis) -> None:
    """Each grant clears some ended locks, but not recursively: else one call would do all the work."""
    names = [f"order {number}" for number in range(20)]
    for name in names:
        once.claim(f"lost, {name}", plan_of(name))
        once.arrive(f"next, {name}", plan_of(name))
    lapse(redis, *(f"locks:{name}" for name in names))
    once.look(0)
    assert redis.zcount(KEY["ends"], 0, 1) >= len(names) / 2
    while redis.zcount(KEY["ends"], 0, 1):
        once.reap()
    assert {name: lock.task_id for name in names if (lock := once.locked(name))} == {
        name: f"next, {name}" for name in names
    }


# -- nothing stays -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("conflict", ["return_existing", "raise", "skip", "replace", "keep_last"])
@pytest.mark.parametrize("until_", ["finished", "started"])
def test_when_all_is_over_nothing_is_left(
    once: LockCaller, one: Limit, redis: Redis, until_: LockUntil, conflict: OnConflict, *, limited: bool
) -> None:
    """This holds for every policy."""
    plan = plan_of(lock_until=until_, on_conflict=conflict)
    running: list[Started] = []
    for number in range(4):
        mine = once.publish(f"t{number}", plan)
        running += once.arrive(f"t{number}", mine, one if limited else None)
    for _ in range(20):
        running += once.look_once(8)
        if running:
            running += once.end(running.pop(0), slots=8)
    assert not running
    check_empty(peek(redis))


def test_the_next_task_of_a_lock_comes_before_a_later_task_of_the_same_call(once: LockCaller, one: Limit) -> None:
    """The lock ends with a row of that call, so the task that waited for it is in line for its permit."""
    first = once.start("first", PLAN)
    once.give_up("same", "first")
    once.put_once("waits", PLAN, one)
    back = first.held._replace(message=b"again", pause=(0.0, ""))
    reply = once.exchange(back=[back, once.arrival("late", one)])
    assert reply.arrived == (Answer.SENT_BACK, Answer.MUST_PARK)
    assert started(reply) == ("waits",)


# -- all that are held -------------------------------------------------------------------------------------------------


MESSAGE = pack(Message("[[], {}, {}]", headers={"task": "charge"}, properties={}, content_type="application/json"))


def locks(redis: Redis) -> dict[str, LockStatus]:
    """By identity."""
    steering, after, found = Steering(redis), "", []
    while True:
        after, page = read_locks(steering.ask(steering.store.locks(after)))
        found += page
        if not after:
            return {each.identity: each for each in found}


def test_in_each_state(once: LockCaller, one: Limit, redis: Redis) -> None:
    once.claim("t1", plan_of("published"))
    running = once.start("t2", plan_of("running"), one)
    once.put("t3", one, lock=plan_of("parked").spec, message=MESSAGE)
    once.end(once.start("t4", plan_of("done", remember=60)))
    once.end(once.start("t5", plan_of("free")))
    once.start("t6", plan_of("started", lock_until="started"))
    found = locks(redis)
    assert {name: (each.task_id, each.state, each.worker, each.task_name) for name, each in found.items()} == {
        "published": ("t1", "queued", None, None),
        "running": ("t2", "running", "dddddddd", None),
        "parked": ("t3", "queued", None, "charge"),
        "done": ("t4", "done", None, None),
    }
    assert found["running"].fencing_token == running.token
    assert 590 < found["running"].expires_in <= 600
    assert 50 < found["done"].expires_in <= 60


def test_one_that_has_ended_is_left_out_and_nothing_is_written(once: LockCaller, redis: Redis) -> None:
    once.claim("t1", plan_of("lapsed"))
    lapse(redis, "locks:lapsed")
    end_lease(redis, once.start("t2", plan_of("lost")))
    before = peek(redis)
    assert locks(redis) == {}
    after = peek(redis)
    assert (after.hashes, after.sets) == (before.hashes, before.sets)


def test_next_run_is_listed(once: LockCaller, redis: Redis) -> None:
    plan = plan_of(on_conflict="keep_last")
    once.arrive("t1", plan)
    once.arrive("t2", plan)
    (lock,) = locks(redis).values()
    assert (lock.task_id, lock.next_id) == ("t1", "t2")


def test_any_number_a_page_at_a_time(once: LockCaller, redis: Redis) -> None:
    for number in range(1500):
        once.claim(f"t{number}", plan_of(f"i{number}"))
    assert len(locks(redis)) == 1500
    steering = Steering(redis)
    with commands(redis) as calls:
        _, page = read_locks(steering.ask(steering.store.locks("")))
    assert 50 < len(page) < 300
    assert sum(calls.values()) < 1000
