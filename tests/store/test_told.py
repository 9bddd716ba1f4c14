"""A task that got an outcome does not run; the end of its first reaches it, and it leaves nothing."""

from __future__ import annotations

import pytest
from redis import Redis

from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.store.exchange_reply import Answer
from tests.store.lock_caller import REPLACE, SKIP, LockCaller, plan_of, told
from tests.store.peek import expire, peek

#: The store has an outcome for a task whose message the broker had delivered before.
TOLD_AGAIN = Facts(began=False, message=Message.BROKER, result=Result.FAILURE)


@pytest.fixture
def abc(redis: Redis) -> tuple[LockCaller, LockCaller, LockCaller]:
    """Three workers of one queue."""
    a, b, c = (LockCaller(redis, each * 8, "q") for each in "abc")
    return a, b, c


def test_skipped_task_does_not_run_when_it_is_delivered_again(
    abc: tuple[LockCaller, LockCaller, LockCaller], redis: Redis
) -> None:
    """Its worker was killed before it could acknowledge its parked message."""
    a, b, c = abc
    first = a.start("t0", SKIP)
    assert b.arrive("t1", SKIP, slots=1)  # and is killed
    expire(redis, "t1")
    (skipped,) = a.look_once()
    assert told((skipped,)) == [("t1", "skip", "t0")]
    a.end(skipped, "never")
    a.end(first)
    answer, _, _ = c.ask_once("t1", SKIP)
    assert answer == Answer.HAS_RUN


def test_other_message_of_a_skipped_task_does_not_run(
    abc: tuple[LockCaller, LockCaller, LockCaller],
) -> None:
    """The broker connection of its worker was lost between parking and acknowledging."""
    a, b, c = abc
    first = a.start("t0", SKIP)
    (skipped,) = b.arrive("t1", SKIP, slots=1)
    assert c.arrive("t1", SKIP) == ()  # waits for that one to end
    a.end(first)
    b.end(skipped, "never")
    assert c.look_once() == ()


def test_replaced_task_does_not_run_when_its_message_comes_late(
    abc: tuple[LockCaller, LockCaller, LockCaller],
) -> None:
    """The call that parks it is on its way while the broker has delivered it again."""
    a, b, c = abc
    old, new = a.publish("t0", REPLACE), a.publish("t1", REPLACE)
    running = a.start("t1", new)
    (replaced,) = c.arrive("t0", old, slots=1)
    assert told((replaced,)) == [("t0", "replaced", "t1")]
    c.release(replaced.run, TOLD_AGAIN)
    a.end(running)
    assert b.put_once("t0", old, slots=1) == ()


def test_outcome_asked_for_before_the_end_leaves_nothing(
    abc: tuple[LockCaller, LockCaller, LockCaller], redis: Redis
) -> None:
    """The process that ran it stores the outcome; its worker reports the rest."""
    a, b, _ = abc
    plan = plan_of(remember=60.0)
    first, second = a.publish("t0", plan), b.publish("t1", plan, awaited=True)
    run = a.start("t0", first)
    a.succeeded(run, "same", 60.0)
    (concluding,) = b.arrive("t1", second, slots=1)
    assert concluding.verdict == "conclude"
    b.end(concluding)
    a.end(run)
    assert not peek(redis).awaited
    lock = peek(redis).live_lock()
    assert lock
    assert (lock["state"], lock["awaited"]) == ("done", 0)


@pytest.mark.parametrize(("how", "state"), [("done", "done"), ("failed", "failed")])
def test_follower_of_a_lost_lease_gets_its_end(
    abc: tuple[LockCaller, LockCaller, LockCaller], redis: Redis, how: str, state: str
) -> None:
    """The lock outlasts the lease, so no other event releases its followers."""
    a, b, _ = abc
    plan = plan_of(lock_until="expires")
    a.claim("t0", plan)
    run = a.start("t0", plan)
    assert b.arrive("t1", plan) == ()
    expire(redis, "t0")
    b.look_once()
    a.end(run, how)
    assert told(b.look_once()) == [("t1", "conclude", "t0")]
    lock = peek(redis).live_lock()
    assert lock
    assert (lock["task"], lock["state"]) == ("t0", state)
