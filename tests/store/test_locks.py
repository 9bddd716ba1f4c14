"""Identity locks: the task that may run, the tasks that wait for it, and the results of the others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from celery_throttle.core.limits import Limit
from celery_throttle.store import identity_locks
from celery_throttle.store.exchange_reply import Answer, LockState
from celery_throttle.store.identity_locks import CLAIMED, OURS, REPLACED, TAKEN
from tests.store.caller import held_by, started
from tests.store.lock_caller import (
    KEEP_LAST,
    PLAN,
    REPLACE,
    SKIP,
    LockCaller,
    end_lease,
    end_lock,
    plan_of,
    state_of,
    told,
)
from tests.store.peek import KEY, check, lapse, let_come_due, peek
from tests.store.terms_caller import terms
from tests.support.waiting import until

if TYPE_CHECKING:
    from redis import Redis

    from celery_throttle.core.dedup import LockPlan, LockUntil, OnConflict
    from tests.primitives.faults import StoreClock
    from tests.store.lock_caller import Started
    from tests.store.steering import Steering

SHORT = 0.1
LOST, RENEWED, PUT_BACK = 0, 1, 2


@pytest.fixture
def worker(redis: Redis) -> LockCaller:
    return LockCaller(redis, "aaaaaaaa", "q")


@pytest.fixture
def peer(redis: Redis) -> LockCaller:
    return LockCaller(redis, "bbbbbbbb", "q")


@pytest.fixture
def brief(redis: Redis) -> LockCaller:
    """A worker whose leases end almost at once."""
    return LockCaller(redis, "dddddddd", "q", lease=SHORT)


# -- publishing ---------------------------------------------------------------------------------------------------


def test_the_first_claim_takes_the_lock(worker: LockCaller) -> None:
    answer, other, claim = worker.claim("t1", PLAN)
    assert (answer, other) == (CLAIMED, "")
    assert int(claim) > 0
    found = worker.locked()
    assert found
    assert (found.task_id, found.state, found.fencing_token, found.next_id) == ("t1", "queued", 0, None)
    assert 3590 < found.expires_in <= 3600


def test_claiming_again_is_ours(worker: LockCaller) -> None:
    """A retry publishes itself under the same id."""
    _, _, claim = worker.claim("t1", PLAN)
    assert worker.claim("t1", PLAN) == (OURS, "", claim)


@pytest.mark.parametrize("conflict", ["return_existing", "raise", "skip"])
def test_duplicate_gets_the_holder_of_the_lock(worker: LockCaller, conflict: OnConflict) -> None:
    worker.claim("t1", PLAN)
    assert worker.claim("t2", plan_of(on_conflict=conflict)) == (TAKEN, "t1", "0")
    assert state_of(worker) == ("t1", "queued")


def test_an_id_may_be_anything(worker: LockCaller) -> None:
    strange = ' 1 2 "\u00e9\n\\'
    worker.claim(strange, PLAN)
    assert worker.claim("t2", PLAN) == (TAKEN, strange, "0")
    assert worker.claim("t3", REPLACE)[:2] == (REPLACED, strange)


@pytest.mark.parametrize("identity", ["x" * 40, '"]' * 20, "\u00e9" * 40])
def test_an_identity_that_a_header_brings_may_be_anything(worker: LockCaller, identity: str) -> None:
    plan = replace(PLAN, identity=identity)
    assert worker.claim("t1", plan)[0] == CLAIMED
    assert worker.claim("t2", plan) == (TAKEN, "t1", "0")


def test_a_full_server_lets_claim(worker: LockCaller, redis: Redis) -> None:
    """A lock is small, and without it a publish would be unchecked."""
    redis.config_set("maxmemory", "1")
    try:
        assert worker.claim("t1", PLAN)[0] == CLAIMED
        assert worker.claim("t2", PLAN)[0] == TAKEN
    finally:
        redis.config_set("maxmemory", "0")


def test_the_last_one_is_kept_to_run_next(worker: LockCaller) -> None:
    """Each newer one replaces the one before it."""
    worker.start("t1", PLAN)
    assert worker.claim("t2", KEEP_LAST)[:2] == (CLAIMED, "")
    assert worker.claim("t3", KEEP_LAST)[:2] == (REPLACED, "t2")
    found = worker.locked()
    assert found
    assert (found.task_id, found.next_id) == ("t1", "t3")


def test_other_arguments_are_another_lock(worker: LockCaller) -> None:
    worker.start("t1", PLAN)
    assert worker.claim("t2", plan_of("other"))[0] == CLAIMED
    worker.start("t3", plan_of("third"))


def test_giving_up_frees_a_queued_one(worker: LockCaller) -> None:
    """Its publishing failed, or it was revoked."""
    worker.claim("t1", PLAN)
    assert worker.give_up("same", "t2") == 0
    assert worker.give_up("same", "t1") == 1
    assert worker.give_up("same", "t1") == 0
    assert worker.locked() is None


def test_one_that_runs_is_not_given_up(worker: LockCaller) -> None:
    worker.start("t1", PLAN)
    assert worker.give_up("same", "t1") == 0
    assert state_of(worker) == ("t1", "running")


def test_giving_up_the_next_one_leaves_the_running_one(worker: LockCaller) -> None:
    worker.start("t1", PLAN)
    worker.claim("t2", KEEP_LAST)
    assert worker.give_up("same", "t2") == 1
    found = worker.locked()
    assert found
    assert (found.task_id, found.next_id) == ("t1", None)


def test_giving_up_lets_the_follower_run(worker: LockCaller, peer: LockCaller) -> None:
    worker.claim("t1", PLAN)
    assert peer.arrive("t2", PLAN) == ()
    worker.give_up("same", "t1")
    assert told(peer.look_once()) == [("t2", "run", "")]


def test_unlocking_takes_the_lock_from_any_holder(worker: LockCaller) -> None:
    worker.claim("t1", PLAN)
    assert worker.unlock("same", "t2") == 0
    assert worker.unlock("same", "t1") == 1
    assert worker.unlock("same") == 0
    assert worker.locked() is None


# -- at the gate ---------------------------------------------------------------------------------------------------


def test_a_start_brings_a_fencing_token_that_grows(worker: LockCaller, peer: LockCaller) -> None:
    tokens = []
    for number in range(4):
        started = (worker, peer)[number % 2].start(f"t{number}", PLAN)
        found = worker.locked()
        assert found
        assert found.fencing_token == started.token
        tokens.append(started.token)
        worker.end(started)
    assert tokens == sorted(set(tokens))


def test_tokens_grow_over_a_loss_of_the_data(worker: LockCaller, redis: Redis) -> None:
    before = worker.start("t1", PLAN).token
    redis.flushall()
    assert worker.start("t2", PLAN).token > before


def test_tokens_grow_when_the_clock_was_set_back(worker: LockCaller, redis: Redis) -> None:
    ahead = 4 * worker.start("t1", PLAN).token  # a number that is exact in Lua
    redis.hset(KEY["meta"], "stamp", str(ahead))
    assert worker.start("t2", plan_of("other")).token > ahead


def test_asking_twice_gives_the_same_token(worker: LockCaller) -> None:
    """The first reply was lost."""
    held = worker.start("t1", PLAN)
    assert worker.again().asked == (held.token,)
    assert worker.exchange(asked=[held.held]).asked == (held.token,), "also by another call"


def test_the_lock_comes_before_the_permit(worker: LockCaller, one: Limit, redis: Redis) -> None:
    """A singleton that waits for a permit has its lock, and no one else gets it."""
    held = worker.start("t1", PLAN, one)
    assert worker.arrive("t2", plan_of("other"), one) == ()
    found = worker.locked("other")
    assert found
    assert (found.task_id, found.state) == ("t2", "queued")
    assert peek(redis).records["t2"].verdict == "run"
    (next_one,) = worker.end(held, slots=1)
    assert (next_one.task, next_one.verdict) == ("t2", "run")
    assert next_one.token > held.token


def test_task_that_is_never_parked_takes_no_lock(worker: LockCaller, one: Limit) -> None:
    """Its worker may be lost after the answer, and the message does not come again if the task has run elsewhere."""
    held = worker.start("t1", PLAN, one)
    answer, *_ = worker.ask_once("t2", plan_of("other"), one)
    assert answer == Answer.MUST_PARK
    assert worker.locked("other") is None
    worker.end(held)
    assert worker.start("t2", plan_of("other"), one)


def test_a_duplicate_needs_no_place_in_a_full_line(worker: LockCaller) -> None:
    full = terms(Limit("full", 1, max_parked=1)).same
    held = worker.start("t1", PLAN, full)
    worker.arrive("t2", plan_of("other"), full)
    assert worker.put("t3", full, lock=plan_of("third").spec).parked == (Answer.CROWDED,)
    assert worker.put("t4", full, lock=PLAN.spec).parked == (Answer.PARKED,)
    assert [each[:2] for each in told(worker.end(held, slots=2))] == [("t2", "run"), ("t4", "conclude")]


def test_a_duplicate_that_waits_makes_no_line_full(worker: LockCaller) -> None:
    full = terms(Limit("full", 1, max_parked=1)).same
    worker.start("t1", PLAN, full)
    for task in ("t2", "t3"):
        worker.arrive(task, PLAN, full)
    assert worker.put("t4", full, lock=plan_of("other").spec).parked == (Answer.PARKED,)
    assert worker.put("t5", full, lock=plan_of("third").spec).parked == (Answer.CROWDED,)


def test_a_duplicate_takes_no_permit_while_it_waits(worker: LockCaller, two: Limit, redis: Redis) -> None:
    """It waits in the line of its lock; the other permit is for others."""
    worker.start("t1", PLAN, two)
    assert worker.arrive("t2", PLAN, two, slots=1) == ()
    store = peek(redis)
    assert store.used == {"gpu2": 1}
    assert store.records["t2"].lane == "follow:same:t1\0q"
    worker.start("t3", plan_of("other"), two)


@pytest.mark.parametrize("outcome", ["done", "failed"])
def test_duplicates_get_the_outcome(worker: LockCaller, one: Limit, redis: Redis, outcome: str) -> None:
    """All of them, though the limit has one permit only: an outcome takes none."""
    held = worker.start("t1", PLAN, one)
    for task in ("t2", "t3"):
        worker.arrive(task, PLAN, one)
    followers = worker.end(held, outcome, slots=3)
    assert told(followers) == [("t2", "conclude", "t1"), ("t3", "conclude", "t1")]
    assert all(follower.token == 0 for follower in followers)
    assert peek(redis).used == {}
    assert worker.locked() is None
    for follower in followers:
        worker.end(follower)
    assert_empty(redis)


def test_duplicates_without_a_slot_get_the_outcome_later(worker: LockCaller, peer: LockCaller) -> None:
    """The holder of the lock at that time does not matter."""
    held = worker.start("t0", PLAN)
    waiting = [f"t{number}" for number in range(1, 6)]
    for task in waiting:
        worker.arrive(task, PLAN)
    worker.end(held)
    worker.claim("t9", PLAN)
    assert told(peer.look_once(9)) == [(task, "conclude", "t0") for task in waiting]


@pytest.mark.parametrize("outcome", ["done", "ignored"])
def test_more_duplicates_than_fit_in_one_reply(worker: LockCaller, one: Limit, redis: Redis, outcome: str) -> None:
    """They have the outcome, too; or wait for the one of them that runs now."""
    held = worker.start("t0", PLAN)
    tasks = [f"t{number}" for number in range(1, 702)]
    while tasks:
        some, tasks = tasks[:50], tasks[50:]
        worker.exchange(parked=[worker.parcel(task, one, lock=PLAN.spec) for task in some])
    worker.end(held, outcome)
    worker.look(0)
    verdicts = Counter(record.raw["lock"]["verdict"] for record in peek(redis).parked.values())
    firsts = Counter(record.raw["lock"]["first"] for record in peek(redis).parked.values())
    if outcome == "done":
        assert (verdicts, firsts) == ({"conclude": 701}, {"t0": 701})
    else:
        assert (verdicts, firsts) == ({"run": 1, "follow": 700}, {"": 1, "t1": 700})


def test_more_that_wait_to_run_next_than_can_go_on_at_once(worker: LockCaller, redis: Redis) -> None:
    """Time alone brings the next caller to the rest of them."""
    worker.start("t1", worker.publish("t1", KEEP_LAST))
    assert worker.arrive("t2", worker.publish("t2", KEEP_LAST)) == ()
    redis.zadd(KEY["due"], {"lock:next:same": 1})
    redis.hdel(KEY["locks"], "same")
    redis.zrem(KEY["ends"], "locks:same")
    assert told(worker.look_once(1)) == [("t2", "run", "")]


def test_duplicate_from_another_queue_gets_the_outcome(worker: LockCaller, redis: Redis) -> None:
    """The worker that ends the first one cannot start it."""
    stranger = LockCaller(redis, "cccccccc", "q2")
    held = worker.start("t1", PLAN)
    stranger.arrive("t2", PLAN)
    assert worker.end(held, slots=1) == ()
    assert told(stranger.look_once()) == [("t2", "conclude", "t1")]


def test_a_duplicate_runs_when_the_first_was_interrupted(worker: LockCaller) -> None:
    """Rejected, ignored or revoked: it has no outcome."""
    held = worker.start("t1", PLAN)
    worker.arrive("t2", PLAN)
    worker.arrive("t3", PLAN)
    assert told(worker.end(held, "ignored", slots=2)) == [("t2", "run", "")]
    assert state_of(worker) == ("t2", "running")


def test_a_duplicate_runs_when_the_worker_of_the_first_is_lost(brief: LockCaller, clock: StoreClock) -> None:
    """Its lease ends without a call."""
    brief.start("t1", PLAN)
    brief.arrive("t2", PLAN)
    assert told(brief.look_once()) == []
    clock.move(int(SHORT * 600_000))
    brief.look_once()  # else the store may have been away
    clock.move(int(SHORT * 400_000))
    assert told(brief.look_once()) == [("t2", "run", "")]


def test_claim_finds_that_the_worker_of_the_first_is_lost(worker: LockCaller, redis: Redis) -> None:
    end_lease(redis, worker.start("t1", PLAN), lock=False)
    assert worker.claim("t2", PLAN)[0] == CLAIMED
    assert not peek(redis).leases


@pytest.mark.parametrize("by", ["says something", "books", "asks who has it"])
def test_follower_of_an_ended_lock_goes_on_after_any_discovery(
    worker: LockCaller, steering: Steering, one: Limit, redis: Redis, by: str
) -> None:
    worker.claim("t1", PLAN)
    assert worker.arrive("t2", PLAN, one) == ()
    end_lock(redis)
    if by == "says something":
        steering.say("other", "pause")
    elif by == "books":
        steering.ask(worker.store.reserve("mails", Limit("mails", rate="100/m").declared, 1, 1.0))
    else:
        worker.locked()
    assert told(worker.look_once()) == [("t2", "run", "")]


def test_late_end_frees_no_other_lock(worker: LockCaller, redis: Redis) -> None:
    late = worker.start("t1", PLAN)
    worker.arrive("t2", PLAN)
    end_lease(redis, late)
    assert told(worker.look_once()) == [("t2", "run", "")]
    assert worker.end(late, slots=1) == ()
    assert state_of(worker) == ("t2", "running")


def test_only_its_holder_frees_a_lock(worker: LockCaller) -> None:
    held = worker.start("t1", PLAN)
    worker.end_as("t1", "aaaaaaaa:ff")
    worker.end_as("t2", held.nonce)
    assert state_of(worker) == ("t1", "running")


@pytest.mark.parametrize("outcome", ["retry", "requeue", "return"])
def test_one_that_comes_again_keeps_its_lock(worker: LockCaller, outcome: str) -> None:
    held = worker.start("t1", worker.publish("t1", PLAN))
    worker.arrive("t2", PLAN)
    assert worker.end(held, outcome, slots=2) == ()
    assert state_of(worker) == ("t1", "queued")
    assert worker.claim("t3", PLAN)[0] == TAKEN
    again = worker.start("t1", PLAN, attempt=1)
    assert again.token > held.token
    assert told(worker.end(again, slots=2)) == [("t2", "conclude", "t1")]


@pytest.mark.parametrize("conflict", ["raise", "skip", "replace"])
def test_outcome_at_the_gate_takes_a_slot_only(
    worker: LockCaller, one: Limit, redis: Redis, conflict: OnConflict
) -> None:
    """The publisher could not check: the gate decides."""
    worker.start("t1", PLAN, one)
    verdict = {"raise": "duplicate", "skip": "skip", "replace": "follow"}[conflict]
    grants = worker.arrive("t2", plan_of(on_conflict=conflict), one, slots=1)
    if verdict == "follow":
        assert grants == ()
        assert peek(redis).records["t2"].verdict == "follow"
        return
    assert told(grants) == [("t2", verdict, "t1")]
    assert peek(redis).used == {"gpu": 1}
    worker.end(grants[0])
    assert peek(redis).used == {"gpu": 1}
    assert state_of(worker) == ("t1", "running")


def test_a_holder_that_is_put_back_leaves_its_line(
    worker: LockCaller, peer: LockCaller, one: Limit, redis: Redis
) -> None:
    """Its other delivery waits for the task that took its lock; the call that puts it back decides again."""
    held = worker.start("t1", PLAN, one)
    end_lease(redis, held)
    peer.reap(1)
    lapse(redis, "locks:same")
    peer.claim("t2", PLAN)
    assert peer.arrive("t1", PLAN, one) == ()
    assert worker.renew_once(held) == 2
    assert peek(redis).hashes["waiting"] == {}
    check(peek(redis))


@pytest.mark.parametrize("plan", [REPLACE, KEEP_LAST])
def test_a_retry_that_finds_no_lock_is_as_old_as_its_call(worker: LockCaller, redis: Redis, plan: LockPlan) -> None:
    """Also the lock of a newer call has ended, which is on its way for long."""
    first = worker.publish("t1", plan)
    end_lease(redis, worker.start("t1", first))
    new = worker.publish("t2", plan)
    end_lock(redis)
    again = worker.publish("t1", first)
    newest = worker.start("t2", new)
    assert told(worker.arrive("t1", again, slots=1)) == [("t1", "replaced", "t2")]
    worker.end(newest)


def test_the_last_one_runs_after_the_one_that_runs(worker: LockCaller) -> None:
    """Those between them do not run."""
    plans = {task: worker.publish(task, KEEP_LAST) for task in ("t1",)}
    held = worker.start("t1", plans["t1"])
    second = worker.publish("t2", KEEP_LAST)
    assert worker.arrive("t2", second) == ()
    third = worker.publish("t3", KEEP_LAST)
    assert worker.look_once(2) == ()
    assert [each[:2] for each in told(worker.arrive("t3", third, slots=1))] == [("t2", "replaced")]
    assert told(worker.end(held, slots=1)) == [("t3", "run", "")]


def test_next_one_runs_though_another_delivery_of_it_does_not(worker: LockCaller, peer: LockCaller) -> None:
    """That one had expired, so its worker reported that it never runs."""
    held = worker.start("t1", KEEP_LAST)
    assert peer.arrive("t2", KEEP_LAST) == ()
    peer.exchange(never=[("same", "t2", "")])
    assert told(worker.end(held, slots=1)) == [("t2", "run", "")]


def test_a_second_delivery_waits_for_the_first(worker: LockCaller, redis: Redis) -> None:
    """The same task id is no duplicate of itself."""
    held = worker.start("t1", PLAN)
    assert worker.arrive("t1", PLAN, slots=1) == ()
    assert peek(redis).seconds.keys() == {"t1"}
    assert told(worker.end(held, "ignored", slots=1)) == [("t1", "run", "")]


def test_a_revoked_one_that_is_parked_frees_its_lock(worker: LockCaller, one: Limit) -> None:
    worker.start("t0", plan_of("other"), one)
    worker.arrive("t1", PLAN, one)
    worker.arrive("t2", PLAN)
    assert [each.task for each in worker.withdraw("t1")] == ["t1"]
    assert told(worker.look_once()) == [("t2", "run", "")]


# -- how long ----------------------------------------------------------------------------------------------------


def test_one_that_may_not_wait_any_longer_has_no_lock(worker: LockCaller, one: Limit, redis: Redis) -> None:
    """Also while no worker has a slot to say that it does not run."""
    worker.start("other", plan_of("other"), one)
    worker.put("t1", one, lock=PLAN.spec, wait_ms=600_000)
    assert state_of(worker) == ("t1", "queued")
    let_come_due(redis, "task")
    worker.look(0)
    assert worker.locked() is None
    (told_off,) = worker.look(1).grants
    assert told_off.expired
    assert worker.locked() is None
    worker.renew(held_by(told_off))
    assert worker.locked() is None


def test_until_expires_a_failure_keeps_the_lock(worker: LockCaller) -> None:
    """Only the same task may run again."""
    plan = plan_of(lock_until="expires")
    worker.end(worker.start("t1", plan), "failed")
    assert state_of(worker) == ("t1", "failed")
    assert worker.claim("t2", plan)[:2] == (TAKEN, "t1")
    assert told(worker.arrive("t2", plan, slots=1)) == [("t2", "conclude", "t1")]
    worker.end(worker.start("t1", plan))
    assert state_of(worker) == ("t1", "done")


@pytest.mark.parametrize("outcome", ["done", "failed", "retry", "ignored"])
def test_until_expires_failed_one_makes_the_lock_no_longer(
    worker: LockCaller, redis: Redis, clock: StoreClock, outcome: str
) -> None:
    plan = worker.publish("t1", plan_of(lock_until="expires"))
    till = peek(redis).lock_ends()
    worker.end(worker.start("t1", plan), "failed")
    clock.move(1_800_000_000)
    worker.end(worker.start("t1", plan, attempt=1), outcome)
    assert peek(redis).lock_ends() == till


def test_a_failed_one_that_waits_to_run_again_has_no_outcome_yet(worker: LockCaller, one: Limit) -> None:
    plan = plan_of(lock_until="expires")
    worker.end(worker.start("t1", plan), "failed")
    other = worker.start("other", plan_of("other"), one)
    assert worker.arrive("t1", plan, one) == ()
    assert worker.arrive("t2", plan, slots=1) == ()
    (again,) = worker.end(other, slots=1)
    assert told((again,)) == [("t1", "run", "")]
    assert told(worker.end(again, slots=1)) == [("t2", "conclude", "t1")]


def test_until_started_it_is_free_from_the_start_on(worker: LockCaller) -> None:
    plan = plan_of(lock_until="started")
    assert worker.claim("t1", plan)[0] == CLAIMED
    assert worker.claim("t2", plan)[0] == TAKEN
    first = worker.start("t1", plan)
    assert worker.locked() is None
    assert worker.claim("t2", plan)[0] == CLAIMED
    second = worker.start("t2", plan)
    assert second.token > first.token
    worker.claim("t3", plan)
    worker.end(first)
    worker.end(second)
    assert state_of(worker) == ("t3", "queued")


@pytest.mark.parametrize("conflict", ["return_existing", "raise", "skip", "replace"])
def test_until_started_later_attempt_runs_despite_another_lock(worker: LockCaller, conflict: OnConflict) -> None:
    plan = plan_of(lock_until="started", on_conflict=conflict)
    first = worker.publish("t1", plan)
    held = worker.start("t1", first)
    second = worker.publish("t2", plan)
    worker.end(held, "retry")
    again = worker.start("t1", first, attempt=1)
    assert again.token > held.token
    assert state_of(worker) == ("t2", "queued")
    worker.end(again)
    assert state_of(worker) == ("t2", "queued")
    worker.start("t2", second)


@pytest.mark.parametrize("outcome", ["done", "failed"])
def test_until_started_follower_has_its_outcome_with_a_new_lock(
    worker: LockCaller, peer: LockCaller, outcome: str
) -> None:
    plan = plan_of(lock_until="started")
    claimed = worker.publish("t1", plan)
    assert peer.arrive("t2", plan) == ()
    held = worker.start("t1", claimed)
    peer.start("t3", peer.publish("t3", plan))
    assert told(worker.end(held, outcome, slots=1)) == [("t2", "conclude", "t1")]


@pytest.mark.parametrize("published", [True, False])
def test_until_started_follower_goes_on_after_a_lost_first(
    worker: LockCaller, peer: LockCaller, redis: Redis, *, published: bool
) -> None:
    plan = plan_of(lock_until="started")
    claimed = worker.publish("t1", plan)
    assert peer.arrive("t2", plan) == ()
    held = worker.start("t1", claimed)
    other = peer.start("t3", peer.publish("t3", plan) if published else plan)
    end_lease(redis, held, lock=False)
    peer.reap(1)
    found = (*peer.look_once(), *peer.end(other, slots=1))
    assert [each.task for each in found] == ["t2"]


def test_until_started_follower_waits_as_long_as_the_first_runs(
    worker: LockCaller, peer: LockCaller, redis: Redis
) -> None:
    plan = plan_of(lock_until="started")
    claimed = worker.publish("t1", plan)
    assert peer.arrive("t2", plan) == ()
    held = worker.start("t1", claimed)
    redis.zadd(KEY["ends"], {"locks:same": peek(redis).now + 1000})
    assert worker.renew_once(held) == RENEWED
    store = peek(redis)
    assert store.lock_ends() >= store.leases["t1"]


@pytest.mark.parametrize("outcome", ["done", "failed"])
def test_until_expires_the_outcome_does_not_matter(worker: LockCaller, redis: Redis, outcome: str) -> None:
    """From when it was published, to the millisecond."""
    plan = plan_of(lock_until="expires")
    worker.claim("t1", plan)
    ends = peek(redis).lock_ends()
    held = worker.start("t1", plan)
    assert peek(redis).lock_ends() == ends
    worker.renew_once(held)
    worker.end(held, outcome)
    assert peek(redis).lock_ends() == ends
    assert state_of(worker) == ("t1", outcome)
    assert told(worker.arrive("t2", plan, slots=1)) == [("t2", "conclude", "t1")]


def test_until_expires_a_retry_does_not_begin_it_again(worker: LockCaller, redis: Redis) -> None:
    plan = plan_of(lock_until="expires")
    worker.claim("t1", plan, least=3000)
    ends = peek(redis).lock_ends()
    worker.end(worker.start("t1", plan), "retry")
    again = worker.start("t1", plan, attempt=1)
    assert peek(redis).lock_ends() == ends
    worker.end(again)
    assert peek(redis).lock_ends() == ends


def test_until_expires_an_interrupted_one_keeps_its_lock(worker: LockCaller, redis: Redis) -> None:
    """This holds for every end of the run."""
    plan = plan_of(lock_until="expires")
    worker.claim("t1", plan)
    ends = peek(redis).lock_ends()
    worker.end(worker.start("t1", plan), "ignored")
    assert worker.claim("t2", plan)[:2] == (TAKEN, "t1")
    assert peek(redis).lock_ends() == ends


def test_a_success_is_remembered(worker: LockCaller, redis: Redis) -> None:
    """Another call has its outcome, and so has the same task delivered again."""
    plan = plan_of(remember=0.05)
    worker.end(worker.start("t1", plan))
    assert state_of(worker) == ("t1", "done")
    long = plan_of(remember=60)
    worker.end(worker.start("t3", replace(long, identity="long")))
    assert worker.claim("t4", replace(long, identity="long"))[:2] == (TAKEN, "t3")
    assert told(worker.arrive("t4", replace(long, identity="long"), slots=1)) == [("t4", "conclude", "t3")]
    assert told(worker.arrive("t3", replace(long, identity="long"), slots=2))[-1] == ("t3", "done", "t3")
    until(lambda: worker.locked() is None)
    worker.start("t2", plan)
    worker.reap()
    assert "same" in peek(redis).locks


def test_a_failure_is_not_remembered(worker: LockCaller) -> None:
    plan = plan_of(remember=60)
    worker.end(worker.start("t1", plan), "failed")
    assert worker.locked() is None


def test_a_success_is_remembered_though_its_lease_had_ended(worker: LockCaller, redis: Redis) -> None:
    """Its worker stood still for too long, and no other task took the lock."""
    plan = plan_of(remember=60)
    held = worker.start("t1", plan)
    end_lease(redis, held)
    worker.end(held)
    assert state_of(worker) == ("t1", "done")


def test_success_reported_early_outlives_its_worker(worker: LockCaller, redis: Redis) -> None:
    plan = plan_of(remember=60)
    (held,) = worker.put_once("t1", plan, slots=1)
    assert worker.succeeded(held, "same", 60) == 1
    end_lease(redis, held)
    assert told(worker.look_once()) == [("t1", "done", "t1")]


def test_duplicates_get_the_loss_of_the_result(worker: LockCaller, peer: LockCaller) -> None:
    """One that waits, one that a worker finds later, and one that is published."""
    plan = plan_of(remember=60)
    held = worker.start("t1", plan)
    assert peer.arrive("t2", plan) == ()
    assert worker.succeeded(held, "same", 60, lost=True) == 1
    worker.end(held)
    for task in ("t2", "t3"):
        (grant,) = peer.look(1).grants if task == "t2" else peer.put(task, None, lock=plan.spec, slots=1).grants
        assert isinstance(grant.lock, LockState)
        assert (grant.task, grant.lock.verdict, grant.lock.first, grant.lock.lost) == (task, "conclude", "t1", True)
    assert worker.claim("t4", plan)[:2] == (identity_locks.LOST, "t1")


def test_an_early_success_of_an_earlier_grant_of_the_task_counts(worker: LockCaller) -> None:
    """Its lease was lost, and the task runs again: it has succeeded all the same."""
    held = worker.start("t1", plan_of(remember=60))
    assert worker.succeeded(held, "same", 60, token=held.token - 1) == 1
    assert state_of(worker) == ("t1", "done")


def test_an_early_success_counts_though_the_lock_is_lost(worker: LockCaller, peer: LockCaller, redis: Redis) -> None:
    plan = plan_of(remember=60)
    held = worker.start("t1", plan)
    end_lease(redis, held)
    peer.reap(1)
    assert state_of(worker) is None
    assert worker.succeeded(held, "same", 60) == 1
    assert peer.claim("t2", plan)[1] == "t1"


def test_an_early_success_does_not_take_the_lock_of_another_task(
    worker: LockCaller, peer: LockCaller, redis: Redis
) -> None:
    plan = plan_of(remember=60)
    held = worker.start("t1", plan)
    end_lease(redis, held)
    peer.reap(1)
    peer.start("t2", plan)
    assert worker.succeeded(held, "same", 60) == 0
    assert state_of(worker) == ("t2", "running")


def test_an_early_success_counts_not_if_the_lock_was_taken_away(worker: LockCaller) -> None:
    """An operator did that while it ran: the next call is to run."""
    held = worker.start("t1", plan_of(remember=60))
    worker.unlock("same")
    assert worker.succeeded(held, "same", 60) == 0
    assert state_of(worker) is None


# -- leases ------------------------------------------------------------------------------------------------------


def test_a_lock_is_renewed_with_its_lease(brief: LockCaller, redis: Redis, clock: StoreClock) -> None:
    held = brief.start("t1", PLAN)
    ends = peek(redis).lock_ends()
    clock.move(int(SHORT * 500_000))
    assert brief.renew_once(held) == RENEWED
    store = peek(redis)
    assert store.lock_ends() > ends
    assert store.lock_ends() >= store.leases["t1"]


def test_lock_does_not_end_before_a_lease_requested_twice(brief: LockCaller, redis: Redis, clock: StoreClock) -> None:
    held = brief.start("t1", PLAN)
    clock.move(int(SHORT * 500_000))
    brief.exchange(asked=[held.held])
    store = peek(redis)
    assert store.lock_ends() >= store.leases["t1"]


def test_a_lock_is_put_back_after_the_store_lost_everything(worker: LockCaller, one: Limit, redis: Redis) -> None:
    held = worker.start("t1", PLAN, one)
    redis.flushall()
    assert worker.renew_once(held) == PUT_BACK
    assert state_of(worker) == ("t1", "running")
    assert peek(redis).used == {"gpu": 1}
    assert worker.claim("t2", PLAN)[:2] == (TAKEN, "t1")
    worker.end(held)
    assert worker.locked() is None


def test_restored_lock_has_the_token_of_its_task(worker: LockCaller, redis: Redis) -> None:
    """Else the report of its success is refused."""
    plan = plan_of(remember=60)
    held = worker.start("t1", plan)
    redis.flushall()
    worker.renew_once(held)
    assert worker.succeeded(held, "same", 60) == 1


def test_restored_lock_of_a_parked_task_has_its_token(worker: LockCaller, peer: LockCaller, redis: Redis) -> None:
    (held,) = worker.put_once("t1", plan_of(remember=60), slots=1)
    worker.look()
    end_lease(redis, held, lock=False)
    peer.reap(1)
    assert worker.renew_once(held) == PUT_BACK
    assert worker.succeeded(held, "same", 60) == 1


def test_next_one_runs_though_the_lock_ended_before_its_renewal(
    worker: LockCaller, peer: LockCaller, redis: Redis
) -> None:
    held = worker.start("t1", KEEP_LAST)
    assert peer.arrive("t2", KEEP_LAST) == ()
    end_lock(redis)
    assert worker.renew_once(held) == RENEWED
    assert told(worker.end(held, slots=1)) == [("t2", "run", "")]


def test_follower_of_an_ended_lock_waits_for_its_restored_holder(
    worker: LockCaller, peer: LockCaller, redis: Redis
) -> None:
    held = worker.start("t1", PLAN)
    end_lock(redis)
    worker.claim("t2", PLAN)
    assert peer.arrive("t3", PLAN) == ()
    end_lock(redis)
    assert worker.renew_once(held) == RENEWED
    assert told(worker.end(held, slots=1)) == [("t3", "conclude", "t1")]


def test_locks_that_end_together_each_go_to_their_follower(worker: LockCaller, redis: Redis) -> None:
    """Each grant clears some ended locks, but not recursively: else one call would do all the work."""
    names = [f"order {number}" for number in range(20)]
    for name in names:
        worker.claim(f"lost, {name}", plan_of(name))
        worker.arrive(f"next, {name}", plan_of(name))
    lapse(redis, *(f"locks:{name}" for name in names))
    worker.look(0)
    assert redis.zcount(KEY["ends"], 0, 1) >= len(names) / 2
    while redis.zcount(KEY["ends"], 0, 1):
        worker.reap()
    assert {name: lock.task_id for name in names if (lock := worker.locked(name))} == {
        name: f"next, {name}" for name in names
    }


def test_a_success_is_remembered_though_its_holder_is_put_back(worker: LockCaller, redis: Redis) -> None:
    """Its lease lapsed after its child had reported the success; its worker, still without that, renews it."""
    plan = plan_of(remember=60)
    held = worker.start("t1", plan)
    worker.succeeded(held, "same", 60)
    end_lease(redis, held)
    worker.reap(1)
    assert worker.renew_once(held) == PUT_BACK
    assert state_of(worker) == ("t1", "done")
    worker.end(held)
    assert worker.claim("t2", plan)[1] == "t1"


def test_follower_gets_the_success_of_a_holder_back_in_line(worker: LockCaller, peer: LockCaller, redis: Redis) -> None:
    """Its lease lapsed before its child reported the success, and then its worker."""
    plan = plan_of(remember=60)
    (held,) = worker.put_once("t1", plan, slots=1)
    assert peer.arrive("t2", plan, slots=1) == ()
    end_lease(redis, held)
    peer.reap(1)
    assert worker.succeeded(held, "same", 60) == 1
    worker.end(held)
    assert not [each for each in peek(redis).parked if each == "t1"]
    told_of = peer.look_once(2)
    assert told(told_of) == [("t2", "conclude", "t1")]
    for each in told_of:
        peer.end(each)
    assert not peek(redis).records


@pytest.mark.parametrize("parked", [False, True], ids=["asked", "resumed"])
@pytest.mark.parametrize("taken", [False, True], ids=["free", "taken"])
def test_grant_replayed_late_comes_with_its_lock_or_not_at_all(
    worker: LockCaller, peer: LockCaller, redis: Redis, *, parked: bool, taken: bool
) -> None:
    """The reply was lost for longer than the lock lasted, and no call has reclaimed the permit."""
    if parked:
        worker.put_once("t1", PLAN, slots=1)
    else:
        worker.start("t1", PLAN)
    lapse(redis, "locks:same")
    if taken:
        peer.start("t2", PLAN)

    reply = worker.again()
    assert bool(started(reply)) == (parked and not taken)
    assert reply.asked == (() if parked else (Answer.MUST_PARK,) if taken else reply.asked)
    assert state_of(worker) == ("t2" if taken else "t1", "running")
    assert sorted(peek(redis).leases) == ["t2" if taken else "t1"]


def test_running_one_takes_its_lock_back_from_an_unstarted_one(worker: LockCaller, redis: Redis) -> None:
    held = worker.start("t1", PLAN)
    redis.flushall()
    worker.claim("t2", PLAN)
    assert worker.renew_once(held) == PUT_BACK
    assert worker.arrive("t2", PLAN, slots=1) == ()
    assert told(worker.end(held, slots=1)) == [("t2", "conclude", "t1")]


def test_follower_of_a_parked_first_waits_for_the_running_one(worker: LockCaller, redis: Redis) -> None:
    held = worker.start("t1", PLAN)
    end_lock(redis)
    worker.claim("t2", PLAN)
    worker.arrive("t3", PLAN)
    assert peek(redis).parked["t3"].raw["lock"]["first"] == "t2"
    assert worker.renew_once(held) == RENEWED
    assert told(worker.end(held, slots=1)) == [("t3", "conclude", "t1")]


def test_stepped_back_delivery_waits_for_none_of_its_followers(
    worker: LockCaller, peer: LockCaller, redis: Redis
) -> None:
    """It followed one that had claimed the lock, until its own first delivery was put back and took the lock again."""
    held = worker.start("t1", PLAN)
    end_lease(redis, held)
    peer.reap(1)
    lapse(redis, "locks:same")
    peer.claim("t2", PLAN)
    assert peer.arrive("t1", PLAN) == ()
    assert worker.renew_once(held) == PUT_BACK
    assert peer.arrive("t2", PLAN) == ()
    end_lease(redis, held, lock=False)
    peer.reap(1)
    (again,) = peer.look_once(2)
    assert told((again,)) == [("t1", "run", "")]
    assert told(peer.end(again, slots=1)) == [("t2", "conclude", "t1")]


def test_a_duplicate_that_is_put_back_takes_no_lock(worker: LockCaller, peer: LockCaller, redis: Redis) -> None:
    """It only gives itself the outcome of its first."""
    held = worker.start("t1", PLAN)
    peer.arrive("t2", PLAN)
    (follower,) = worker.end(held, slots=1)
    end_lease(redis, follower)
    peer.reap(1)
    peer.claim("t3", PLAN)
    assert worker.renew_once(follower) == PUT_BACK
    assert state_of(peer) == ("t3", "queued")


def test_revoked_retry_keeps_no_lock_when_its_first_run_is_lost(
    worker: LockCaller, peer: LockCaller, redis: Redis
) -> None:
    """The lock was to last until the retry runs; the worker of the run that published it dies before its report."""
    held = worker.start("t1", PLAN)
    worker.claim("t1", PLAN)  # publishes the retry
    peer.exchange(never=[("same", "t1", "")])
    assert state_of(peer) == ("t1", "running"), "the run goes on"
    end_lease(redis, held, lock=False)
    peer.reap(1)
    assert peer.locked() is None


@pytest.mark.parametrize("outcome", ["retry", "again", "return"])
def test_task_revoked_elsewhere_during_its_grant_keeps_no_lock(
    worker: LockCaller, peer: LockCaller, outcome: str
) -> None:
    """A worker got its message, or that of its retry, and reported the revoke: no task may wait for another one."""
    held = worker.start("t1", worker.publish("t1", PLAN))
    assert peer.arrive("t2", peer.publish("t2", PLAN)) == ()
    peer.exchange(never=[("same", "t1", "")])
    assert told(worker.end(held, outcome, slots=1)) == [("t2", "run", "")]


@pytest.mark.parametrize("outcome", ["retry", "again", "return"])
def test_until_started_task_revoked_elsewhere_keeps_no_lock(worker: LockCaller, peer: LockCaller, outcome: str) -> None:
    plan = plan_of(lock_until="started")
    held = worker.start("t1", worker.publish("t1", plan))
    peer.exchange(never=[("same", "t1", "")])
    worker.end(held, outcome)
    assert peer.claim("t2", plan)[0] == CLAIMED


@pytest.mark.parametrize("by", ["time", "what cannot be read"])
def test_next_one_comes_before_followers_of_the_outcome(
    worker: LockCaller, peer: LockCaller, redis: Redis, by: str
) -> None:
    """The first waits for its retry, which never comes; the newest call is not lost for an older one."""
    held = worker.start("t1", worker.publish("t1", KEEP_LAST))
    assert peer.arrive("t2", peer.publish("t2", PLAN)) == ()
    assert peer.arrive("t3", peer.publish("t3", KEEP_LAST)) == ()
    worker.end(held, "retry")
    if by == "time":
        end_lock(redis)
    else:
        redis.hset(KEY["locks"], "same", "{")
        assert peer.claim("t9", PLAN)[:2] == (TAKEN, "t3")
    assert told(peer.look_once(2)) == [("t3", "run", "")]


def test_a_grant_that_comes_to_nothing_leaves_the_lock_as_it_was(worker: LockCaller, peer: LockCaller) -> None:
    """Its call was late: another worker had reported before it that the task was revoked."""
    plan = worker.publish("t1", PLAN)
    worker.end(worker.start("t1", plan), "return")
    assert state_of(worker) == ("t1", "queued"), "it had it when it was published"
    peer.exchange(never=[("same", "t1", "")])
    worker.end(worker.start("t1", plan), "return")
    assert worker.locked() is None


def test_revoked_task_that_starts_again_waits_for_its_retry(
    worker: LockCaller, peer: LockCaller, clock: StoreClock
) -> None:
    """This holds too if its lock would have ended by then, because that was set for an earlier run."""
    plan = plan_of(lock_until="expires", lock_ttl=5)
    held = worker.start("t1", plan)
    peer.exchange(never=[("same", "t1", "")])
    worker.end(held, "failed")
    again = worker.start("t1", plan)
    clock.move(20_000_000)
    worker.end(again, "retry")
    assert state_of(worker) == ("t1", "queued")


def test_restored_run_keeps_the_success_of_its_other_delivery(
    worker: LockCaller, peer: LockCaller, redis: Redis, clock: StoreClock
) -> None:
    """It goes on for longer than that, and another call would run beside it."""
    plan = plan_of(remember=2.0)
    held = worker.start("t1", plan)
    end_lease(redis, held, lock=False)
    peer.end(peer.start("t1", plan))
    assert state_of(worker) == ("t1", "done")
    assert worker.renew_once(held) == PUT_BACK
    clock.move(3_000_000)
    assert peer.claim("t2", plan)[:2] == (TAKEN, "t1")
    worker.end(held, "failed")
    clock.move(3_000_000)
    assert peer.locked() is None, "it lasts from the end of the run"


def test_a_lock_that_another_one_runs_with_is_lost(worker: LockCaller, peer: LockCaller, redis: Redis) -> None:
    held = worker.start("t1", PLAN)
    redis.flushall()
    peer.start("t2", PLAN)
    assert worker.renew_once(held) == LOST
    assert state_of(worker) == ("t2", "running")
    worker.end(held)
    assert state_of(worker) == ("t2", "running")


def test_restored_run_leaves_the_lock_of_others_alone(worker: LockCaller, redis: Redis) -> None:
    """It has been free since the start."""
    plan = plan_of(lock_until="started")
    held = worker.start("t1", plan)
    redis.flushall()
    worker.claim("t2", plan)
    assert worker.renew_once(held) == PUT_BACK
    assert state_of(worker) == ("t2", "queued")
    assert worker.claim("t3", plan)[:2] == (TAKEN, "t2")


def test_an_unlocked_task_that_runs_does_not_take_its_lock_again(worker: LockCaller) -> None:
    """Renewing its lease must not undo the change of an operator."""
    held = worker.start("t1", PLAN)
    worker.unlock("same")
    worker.renew_once(held)
    assert worker.locked() is None
    worker.claim("t2", SKIP)
    worker.renew_once(held)
    assert state_of(worker) == ("t2", "queued")


def test_a_lost_one_that_goes_back_in_line_keeps_its_lock(worker: LockCaller, one: Limit, redis: Redis) -> None:
    """It is pending again: a later call is its duplicate, not the other way round."""
    (held,) = worker.put_once("t1", SKIP, one, slots=1)
    end_lease(redis, held)
    worker.reap()
    assert state_of(worker) == ("t1", "queued")
    assert worker.claim("t2", SKIP)[:2] == (TAKEN, "t1")


def test_unarrived_next_one_is_next_after_a_lost_one_too(worker: LockCaller, redis: Redis) -> None:
    held = worker.start("t1", worker.publish("t1", KEEP_LAST))
    worker.publish("t2", KEEP_LAST)
    end_lease(redis, held)
    worker.reap()
    assert state_of(worker) == ("t2", "queued")


def test_the_next_one_keeps_the_lock_while_it_waits_for_a_permit(worker: LockCaller, one: Limit, redis: Redis) -> None:
    """As long as a task that was published may wait, not as long as a lease."""
    worker.start("t0", plan_of("other"), one)
    worker.start("t1", worker.publish("t1", KEEP_LAST))
    worker.arrive("t2", worker.publish("t2", KEEP_LAST), one)
    worker.unlock("same")
    worker.look_once()
    assert state_of(worker) == ("t2", "queued")
    store = peek(redis)
    assert store.lock_ends() - store.now > 3590_000


# -- duplicates with waiting callers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["done", "failed"])
def test_late_awaited_duplicate_has_the_outcome(worker: LockCaller, redis: Redis, outcome: str) -> None:
    held = worker.start("t1", worker.publish("t1", PLAN))
    late = [worker.publish(task, PLAN, awaited=True) for task in ("t2", "t3")]
    assert all(plan.first == "t1" for plan in late)
    worker.end(held, outcome)
    assert worker.locked() is None
    for task, plan in zip(("t2", "t3"), late, strict=True):
        (follower,) = worker.arrive(task, plan, slots=1)
        assert told((follower,)) == [(task, "conclude", "t1")]
        worker.end(follower)
    assert_empty(redis)


def test_awaited_duplicate_back_in_line_is_counted_once(worker: LockCaller) -> None:
    """Its worker was closing: it still is the same one."""
    held = worker.start("t1", PLAN)
    second, third = (worker.publish(task, PLAN, awaited=True) for task in ("t2", "t3"))
    worker.end(held)
    (follower,) = worker.arrive("t2", second, slots=1)
    worker.end(follower, "return")
    (again,) = worker.look_once()
    assert told((again,)) == [("t2", "conclude", "t1")]
    worker.end(again)
    assert told(worker.arrive("t3", third, slots=1)) == [("t3", "conclude", "t1")]


def test_unpublished_awaited_duplicate_asks_for_nothing(worker: LockCaller, redis: Redis) -> None:
    held = worker.start("t1", PLAN)
    assert worker.publish("t2", PLAN, awaited=True).first == "t1"
    assert worker.give_up("same", "t2", "t1") == 0
    worker.end(held)
    assert_empty(redis)


def test_an_awaited_duplicate_that_is_revoked_asks_for_nothing(worker: LockCaller, redis: Redis) -> None:
    """Also if the first has ended meanwhile; the others find the outcome still."""
    held = worker.start("t1", worker.publish("t1", PLAN))
    second, third = (worker.publish(task, PLAN, awaited=True) for task in ("t2", "t3"))
    worker.end(held)
    worker.exchange(never=[("same", "t2", second.first)])
    assert told(worker.arrive("t3", third, slots=1)) == [("t3", "conclude", "t1")]
    worker.exchange(never=[("same", "t3", third.first)])
    assert not peek(redis).awaited


def test_unannounced_duplicate_takes_no_place_of_an_awaited_one(worker: LockCaller) -> None:
    held = worker.start("t1", PLAN)
    awaited = worker.publish("t2", PLAN, awaited=True)
    worker.arrive("t3", PLAN)
    (follower,) = worker.end(held, slots=1)
    assert told((follower,)) == [("t3", "conclude", "t1")]
    worker.end(follower)
    assert told(worker.arrive("t2", awaited, slots=1)) == [("t2", "conclude", "t1")]


def test_late_awaited_duplicate_gets_the_remembered_outcome(worker: LockCaller, redis: Redis) -> None:
    """Its memory had not ended when the duplicate was published."""
    plan = plan_of(remember=60)
    worker.end(worker.start("t1", plan))
    late = worker.publish("t2", plan, awaited=True)
    assert late.first == "t1"
    lapse(redis, "locks:same")
    assert told(worker.arrive("t2", late, slots=1)) == [("t2", "conclude", "t1")]


def test_awaited_duplicate_runs_if_the_first_had_no_outcome(worker: LockCaller) -> None:
    held = worker.start("t1", PLAN)
    late = worker.publish("t2", PLAN, awaited=True)
    worker.end(held, "ignored")
    assert told(worker.arrive("t2", late)) == [("t2", "run", "")]


def test_awaited_duplicate_with_the_lock_goes_on_as_holder(worker: LockCaller) -> None:
    """It was interrupted, the one it was a duplicate of ended after all: it has the lock and keeps it."""
    first = worker.start("t1", PLAN)
    worker.publish("t3", PLAN, awaited=True)
    late = worker.publish("t2", PLAN, awaited=True)
    worker.end(first, "ignored")
    second = worker.start("t2", late)
    worker.end(second, "retry")
    assert state_of(worker) == ("t2", "queued")
    again = worker.start("t2", late, attempt=1)
    worker.end(again)
    assert worker.locked() is None


# -- lines -------------------------------------------------------------------------------------------------------


def test_the_one_before_the_last_does_not_run_after_it(worker: LockCaller) -> None:
    """The first retries, the next one waits; a newer one replaces both."""
    held = worker.start("t1", worker.publish("t1", KEEP_LAST))
    worker.arrive("t2", worker.publish("t2", KEEP_LAST))
    worker.end(held, "retry")
    newest = worker.publish("t3", KEEP_LAST)
    started = [*worker.look_once(4)]
    for each in started:
        worker.end(each)
    last = worker.start("t3", newest)
    started += (*worker.look_once(4), *worker.end(last, slots=4))
    assert [each[:2] for each in told(tuple(started))] == [("t2", "replaced")]


def test_line_of_the_next_one_stays_open(worker: LockCaller) -> None:
    """As before, and there is a newer one still."""
    held = worker.start("t1", worker.publish("t1", KEEP_LAST))
    worker.arrive("t2", worker.publish("t2", KEEP_LAST))
    worker.end(held, "retry")
    third = worker.publish("t3", KEEP_LAST)
    for each in worker.look_once(4):
        worker.end(each)
    running = worker.start("t3", third)
    worker.arrive("t4", worker.publish("t4", KEEP_LAST))
    worker.end(running)
    assert ("t4", "run", "") in told(worker.look_once(4))


def test_line_of_the_next_one_stays_open_after_an_ended_lock(worker: LockCaller, redis: Redis) -> None:
    """The next one still waits, and another one was faster."""
    held = worker.start("t1", worker.publish("t1", KEEP_LAST))
    worker.arrive("t2", worker.publish("t2", KEEP_LAST))
    end_lease(redis, held)
    lapse(redis, "locks:same")
    running = worker.start("t3", worker.publish("t3", KEEP_LAST))
    worker.arrive("t4", worker.publish("t4", KEEP_LAST))
    worker.end(running)
    assert ("t4", "run", "") in told(worker.look_once(4))


def test_a_follower_that_is_published_again_waits_its_turn(worker: LockCaller, redis: Redis) -> None:
    """Earlier followers have the lock first, and it gets the outcome of the last of them."""
    held = worker.start("t1", PLAN)
    worker.arrive("t2", PLAN)
    worker.arrive("t3", PLAN)
    end_lease(redis, held)
    assert worker.claim("t3", PLAN)[:2] == (TAKEN, "t2")
    (second,) = worker.look_once(4)
    assert told((second,)) == [("t2", "run", "")]
    assert told(worker.end(second, slots=4)) == [("t3", "conclude", "t2")]


def test_one_that_was_to_be_skipped_and_is_published_again_runs(worker: LockCaller) -> None:
    """No worker with a slot had given it the outcome yet, and the lock is free by then."""
    held = worker.start("t1", SKIP)
    worker.arrive("t2", SKIP)
    worker.end(held)
    assert worker.claim("t2", SKIP)[0] == CLAIMED
    assert told(worker.look_once(4)) == [("t2", "run", "")]
    assert state_of(worker) == ("t2", "running")


def test_one_that_ran_before_it_became_a_duplicate_has_no_token(
    worker: LockCaller, peer: LockCaller, redis: Redis
) -> None:
    """Tokens are for running tasks."""
    (held,) = worker.put_once("t1", PLAN, slots=1)
    worker.unlock("same")
    other = peer.start("t2", PLAN)
    end_lease(redis, held)
    assert worker.look_once() == ()
    (follower,) = peer.end(other, slots=1)
    assert (follower.task, follower.verdict, follower.token) == ("t1", "conclude", 0)


def test_a_returned_verdict_is_offered_again_at_once(worker: LockCaller, one: Limit) -> None:
    worker.start("t1", PLAN, one)
    (verdict,) = worker.arrive("t2", SKIP, one, slots=1)
    assert told(worker.end(verdict, "return", slots=1)) == [("t2", "skip", "t1")]


def test_blocked_follower_of_another_queue_is_not_passed_over(worker: LockCaller, redis: Redis) -> None:
    """It has had no turn yet that it could have missed."""
    stranger = LockCaller(redis, "cccccccc", "q2")
    held = worker.start("t1", PLAN)
    stranger.arrive("t2", PLAN)
    for _ in range(2):
        worker.look_once()
    assert not peek(redis).passed
    assert worker.end(held, slots=1) == ()
    assert told(stranger.look_once()) == [("t2", "conclude", "t1")]


# -- nothing stays -----------------------------------------------------------------------------------------------


def assert_empty(redis: Redis) -> None:
    """Check that only the limits, the counters and the list of workers stay."""
    store = peek(redis)
    left = {name for name, content in (store.hashes | store.sets).items() if content}
    assert left <= {"limits", "meta", "workers", "ends"}
    assert all(member.startswith("workers:") for member in store.sets["ends"])


@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("conflict", ["return_existing", "raise", "skip", "replace", "keep_last"])
@pytest.mark.parametrize("until_", ["finished", "started"])
def test_when_all_is_over_nothing_is_left(
    worker: LockCaller, one: Limit, redis: Redis, until_: LockUntil, conflict: OnConflict, *, limited: bool
) -> None:
    """This holds for every policy."""
    plan = plan_of(lock_until=until_, on_conflict=conflict)
    running: list[Started] = []
    for number in range(4):
        mine = worker.publish(f"t{number}", plan)
        running += worker.arrive(f"t{number}", mine, one if limited else None)
    for _ in range(20):
        running += worker.look_once(8)
        if running:
            running += worker.end(running.pop(0), slots=8)
    assert not running
    assert_empty(redis)


@pytest.mark.parametrize("until_", ["finished", "expires"])
def test_remembered_success_goes_when_its_time_has_passed(
    brief: LockCaller, redis: Redis, clock: StoreClock, until_: LockUntil
) -> None:
    plan = plan_of(lock_until=until_, remember=0.02 if until_ == "finished" else 0.0, lock_ttl=0.05)
    brief.claim("t1", plan, least=0.05)
    brief.end(brief.start("t1", plan), "done" if until_ == "finished" else "failed")
    assert brief.locked()
    clock.move(1_000_000)
    assert brief.locked() is None
    brief.reap()
    assert_empty(redis)


@pytest.mark.parametrize("singleton", [True, False])
def test_replacement_before_the_end_keeps_no_lock(worker: LockCaller, peer: LockCaller, *, singleton: bool) -> None:
    """``self.replace()``: the same task id, a later attempt, and another lock or none."""
    held = worker.start("t1", worker.publish("t1", PLAN))
    if singleton:
        peer.arrive("t1", peer.publish("t1", plan_of("other")), attempt=1 << 20)
    else:
        assert peer.ask("t1", None, attempt=1 << 20)[0] == Answer.MUST_PARK
        peer.put("t1", None, attempt=1 << 20)
    worker.end(held, "ignored")
    assert worker.locked() is None


def test_a_call_runs_though_its_first_was_lost_with_many_others(worker: LockCaller, redis: Redis) -> None:
    """More leases have ended than one call clears, and that of the first is the last of them."""
    others = [f"other {number}" for number in range(9)]
    for task in others:
        worker.start(task, plan_of(task))
    worker.start("t1", SKIP)
    redis.zadd(KEY["leases"], dict.fromkeys(others, 1) | {"t1": 2})
    worker.start("t2", SKIP)
    assert state_of(worker) == ("t2", "running")
