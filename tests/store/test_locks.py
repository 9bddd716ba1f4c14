"""Identity locks: what no story of test_lock_stories.py has, such as counts, times, and ids of any form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from redis import Redis

from celery_throttle.core.dedup import LockUntil, OnConflict
from celery_throttle.core.limits import Limit
from celery_throttle.store import identity_locks
from celery_throttle.store.calls import Store
from celery_throttle.store.exchange_reply import Answer, LockState
from celery_throttle.store.identity_locks import CLAIMED, REPLACED, TAKEN
from celery_throttle.store.scripts import Call, execute
from tests.primitives.faults import StoreClock
from tests.store.caller import ended, held_by, started
from tests.store.lock_caller import (
    KEEP_LAST,
    PLAN,
    REPLACE,
    SKIP,
    LockCaller,
    Started,
    end_lock,
    plan_of,
    state_of,
    told,
)
from tests.store.peek import KEY, check_empty, lapse, let_come_due, peek

SHORT = 0.1


@pytest.fixture
def peer(redis: Redis) -> LockCaller:
    return LockCaller(redis, "bbbbbbbb", "q")


@pytest.fixture
def brief(redis: Redis) -> LockCaller:
    """A worker whose leases end almost at once."""
    return LockCaller(redis, "eeeeeeee", "q", lease=SHORT)


# -- publishing ---------------------------------------------------------------------------------------------------


def test_the_first_claim_takes_the_lock(once: LockCaller) -> None:
    answer, other, claim = once.claim("t1", PLAN)
    assert (answer, other) == (CLAIMED, "")
    assert int(claim) > 0
    found = once.locked()
    assert found
    assert (found.task_id, found.state, found.fencing_token, found.next_id) == ("t1", "queued", 0, None)
    assert 3590 < found.expires_in <= 3600


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


def test_a_start_brings_a_fencing_token_that_grows(once: LockCaller, peer: LockCaller) -> None:
    tokens = []
    for number in range(4):
        started = (once, peer)[number % 2].start(f"t{number}", PLAN)
        found = once.locked()
        assert found
        assert found.fencing_token == started.token
        tokens.append(started.token)
        once.end(started)
    assert tokens == sorted(set(tokens))


def test_tokens_grow_when_the_clock_was_set_back(once: LockCaller, redis: Redis) -> None:
    ahead = 4 * once.start("t1", PLAN).token  # a number that is exact in Lua
    redis.hset(KEY["meta"], "stamp", str(ahead))
    assert once.start("t2", plan_of("other")).token > ahead


def test_asking_twice_gives_the_same_token(once: LockCaller) -> None:
    """The first reply was lost."""
    held = once.start("t1", PLAN)
    assert once.again().asked == (held.token,)
    assert once.exchange(asked=[held.held]).asked == (held.token,), "also by another call"


@pytest.mark.parametrize("outcome", ["done", "ignored"])
def test_more_duplicates_than_fit_in_one_reply(once: LockCaller, one: Limit, redis: Redis, outcome: str) -> None:
    """They have the outcome, too; or wait for the one of them that runs now."""
    held = once.start("t0", PLAN)
    tasks = [f"t{number}" for number in range(1, 702)]
    while tasks:
        some, tasks = tasks[:50], tasks[50:]
        once.exchange(parked=[once.parcel(task, one, lock=PLAN.spec) for task in some])
    once.end(held, outcome)
    once.look(0)
    verdicts = Counter(record.raw["lock"]["verdict"] for record in peek(redis).parked.values())
    firsts = Counter(record.raw["lock"]["first"] for record in peek(redis).parked.values())
    if outcome == "done":
        assert (verdicts, firsts) == ({"conclude": 701}, {"t0": 701})
    else:
        assert (verdicts, firsts) == ({"run": 1, "follow": 700}, {"": 1, "t1": 700})


def test_more_that_wait_to_run_next_than_can_go_on_at_once(once: LockCaller, redis: Redis) -> None:
    """Time alone brings the next caller to the rest of them."""
    once.start("t1", once.publish("t1", KEEP_LAST))
    assert once.arrive("t2", once.publish("t2", KEEP_LAST)) == ()
    redis.zadd(KEY["due"], {"lock:next:same": 1})
    redis.hdel(KEY["locks"], "same")
    redis.zrem(KEY["ends"], "locks:same")
    assert told(once.look_once(1)) == [("t2", "run", "")]


@pytest.mark.parametrize(
    "discover",
    [
        lambda store: store.control("other", "pause", "1", "0", "ana", "w"),
        lambda store: store.reserve("mails", Limit("mails", rate="100/m").declared, 1, 1.0),
        lambda store: store.locked("same"),
    ],
    ids=["an override", "a booking", "a look at the lock"],
)
def test_follower_of_an_ended_lock_goes_on_after_any_discovery(
    once: LockCaller, one: Limit, redis: Redis, discover: Callable[[Store], Call]
) -> None:
    once.claim("t1", PLAN)
    assert once.arrive("t2", PLAN, one) == ()
    end_lock(redis)
    execute(redis, discover(once.store))
    assert told(once.look_once()) == [("t2", "run", "")]


def test_only_its_holder_frees_a_lock(once: LockCaller) -> None:
    held = once.start("t1", PLAN)
    once.end_as("t1", "dddddddd:ff")
    once.end_as("t2", held.nonce)
    assert state_of(once) == ("t1", "running")


# -- how long ----------------------------------------------------------------------------------------------------


def test_one_that_may_not_wait_any_longer_has_no_lock(once: LockCaller, one: Limit, redis: Redis) -> None:
    """Also while no worker has a slot to say that it does not run."""
    once.start("other", plan_of("other"), one)
    once.put("t1", one, lock=PLAN.spec, wait_ms=600_000)
    assert state_of(once) == ("t1", "queued")
    let_come_due(redis, "task")
    once.look(0)
    assert once.locked() is None
    (told_off,) = once.look(1).grants
    assert told_off.expired
    assert once.locked() is None
    once.renew(held_by(told_off))
    assert once.locked() is None


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


def test_a_lock_is_renewed_with_its_lease(brief: LockCaller, redis: Redis, clock: StoreClock) -> None:
    held = brief.start("t1", PLAN)
    ends = peek(redis).lock_ends()
    clock.move(int(SHORT * 500_000))
    assert brief.renew_once(held) == 1
    store = peek(redis)
    assert store.lock_ends() > ends
    assert store.lock_ends() >= store.leases["t1"]


def test_lock_does_not_end_before_a_lease_requested_twice(brief: LockCaller, redis: Redis, clock: StoreClock) -> None:
    held = brief.start("t1", PLAN)
    clock.move(int(SHORT * 500_000))
    brief.exchange(asked=[held.held])
    store = peek(redis)
    assert store.lock_ends() >= store.leases["t1"]


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


def test_replacement_before_the_end_keeps_no_lock(once: LockCaller, peer: LockCaller) -> None:
    """``self.replace()`` by a task without a lock: the same task id, a later attempt."""
    held = once.start("t1", once.publish("t1", PLAN))
    assert peer.ask("t1", None, attempt=1 << 20)[0] == Answer.MUST_PARK
    peer.put("t1", None, attempt=1 << 20)
    once.end(held, "ignored")
    assert once.locked() is None


def test_a_call_runs_though_its_first_was_lost_with_many_others(once: LockCaller, redis: Redis) -> None:
    """More leases have ended than one call clears, and that of the first is the last of them."""
    others = [f"other {number}" for number in range(9)]
    for task in others:
        once.start(task, plan_of(task))
    once.start("t1", SKIP)
    redis.zadd(KEY["leases"], dict.fromkeys(others, 1) | {"t1": 2})
    once.start("t2", SKIP)
    assert state_of(once) == ("t2", "running")


def test_task_that_makes_way_as_it_could_start_leaves_its_lane(
    once: LockCaller, one: Limit, two: Limit, redis: Redis
) -> None:
    """Both could start, in one slot. The older call has the lock, since that of the newer one was over for a moment."""
    held = [once.take("h1", one), *(once.take(f"h{number}", two) for number in (2, 3))]
    older = once.publish("older", REPLACE)
    newer = once.publish("newer", REPLACE)
    once.put_once("newer", newer, two)
    end_lock(redis)
    once.put_once("older", older, one)
    reply = once.exchange(1, ended=[ended(each) for each in held])
    assert started(reply) == ("newer",)
    assert peek(redis).lanes.keys() == {"\0q"}
    assert told(once.look_once()) == [("older", "replaced", "newer")]


def test_the_next_task_of_a_lock_comes_before_a_later_task_of_the_same_call(once: LockCaller, one: Limit) -> None:
    """The lock ends with a row of that call, so the task that waited for it is in line for its permit."""
    first = once.start("first", PLAN)
    once.give_up("same", "first")
    once.put_once("waits", PLAN, one)
    back = first.held._replace(message=b"again", pause=(0.0, ""))
    reply = once.exchange(back=[back, once.arrival("late", one)])
    assert reply.arrived == (Answer.SENT_BACK, Answer.MUST_PARK)
    assert started(reply) == ("waits",)
