"""Tasks that get a "slow down" from outside."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from celery import chord
from redis import Redis

from celery_throttle import ConfigurationError, RateLimited, StoreUnavailable, Throttled, ThrottleError
from celery_throttle.testing import ThrottleTest
from tests.support.journal import Journal
from tests.support.kit import new_app, task_maker, wait_acknowledged
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Workers

LIMITED = "tests.support.apps.limited"

app: Any = new_app("limited")
#: The labels of the runs, in order, and those of the calls that the service outside answers from now on.
ran: list[str] = []
answered: set[str] = set()


@pytest.fixture
def throttle_celery_app(hints_only: None) -> Any:  # noqa: ARG001
    ran.clear()
    answered.clear()
    return app


def call_api(task: Any, label: str, seconds: float = 30, limit: str | None = None) -> str:
    ran.append(label)
    if label not in answered:
        raise RateLimited(seconds, limit, getattr(task, "max_rounds", None))
    return f"{label} after {task.request.retries}"


def sort(labels: list[str]) -> list[str]:
    return sorted(labels)


make = partial(task_maker(app), body=call_api, bind=True, base=Throttled)
call = make("call", limit=4)
call_late = make("call_late", limit=4, acks_late=True)
call_once = make("call_once", limit=4, singleton=True)
call_one = make("call_one", limit=1)
call_for = make("call_for", limit=4, key=lambda label, **_: label)
two_rounds = make("two_rounds", limit=4, max_rounds=2)
two_rounds_late = make("two_rounds_late", limit=4, max_rounds=2, acks_late=True)
collect = task_maker(app)("collect", sort)


# -- the line ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["call", "call_late", "call_once"])
def test_a_rate_limited_task_comes_again_without_a_retry(kit: ThrottleTest, name: str) -> None:
    task = app.tasks[f"limited.{name}"]
    result = task.delay("a")
    for rounds in (1, 2):
        kit.assert_ran(task, times=rounds)
        kit.assert_sent_back(result, pauses=30)
        kit.assert_line(task, [result])
        kit.assert_held(task, 0)
        answered.update(["a"] * (rounds - 1))
        kit.advance(31)
    assert result.get(timeout=HANGS_AFTER) == "a after 0"
    assert kit.drain().left == ()


@pytest.mark.parametrize("name", ["two_rounds", "two_rounds_late"])
def test_after_so_many_rounds_it_fails(throttle: ThrottleTest, name: str) -> None:
    """The count goes with the task from worker to worker, and the broker has no message at the end."""
    task = app.tasks[f"limited.{name}"]
    with throttle.run_worker():
        result = task.delay("a")
        throttle.assert_parked(result)
    with throttle.run_worker():
        throttle.advance(31)
        throttle.assert_ran(task, times=2)
        throttle.advance(31)
        with pytest.raises(
            ThrottleError, match=r"raised RateLimited \(asked too often, again in 30 s\) after 2 rounds"
        ):
            result.get(timeout=HANGS_AFTER)
        assert throttle.drain().failed == (result.id,)
        wait_acknowledged(throttle)
    assert ran == ["a"] * 3
    assert app.control.purge() == 0


def test_no_task_starts_during_a_hold_and_it_is_first_afterwards(throttle: ThrottleTest) -> None:
    with throttle.run_worker(concurrency=2), throttle.run_worker(concurrency=2):
        first = call_one.delay("first")
        throttle.assert_parked(first, behind=call_one)
        answered.update(["first", "second", "third"])
        line = [first]
        for label in ("second", "third"):
            line.append(call_one.delay(label))
            throttle.assert_line(call_one, line)
        assert collect.delay([]).get(timeout=HANGS_AFTER) == []
        throttle.assert_line(call_one, line)
        throttle.advance(31)
        throttle.drain()
    assert ran == ["first", "first", "second", "third"]


def test_only_its_key_is_held_and_a_chord_waits_for_it(kit: ThrottleTest) -> None:
    answered.add("b")
    result: Any = chord([call_for.s("a"), call_for.s("b")], collect.s()).delay()
    kit.assert_parked(result.parent.results[0], behind=call_for, key="a")
    assert result.parent.results[1].get(timeout=HANGS_AFTER) == "b after 0"
    answered.add("a")
    kit.advance(31)
    assert result.get(timeout=HANGS_AFTER) == ["a after 0", "b after 0"]


def test_a_hold_is_ended_early(kit: ThrottleTest) -> None:
    """The worker, which looks on its own once an hour, gets a hint."""
    first = call.delay("a", 3600)
    kit.assert_parked(first)
    second = call.delay("b", 3600)
    kit.assert_line(call, [first, second])
    answered.update("ab")
    assert kit.control.limit(call).release_hold(why="they are back")
    assert (first.get(timeout=HANGS_AFTER), second.get(timeout=HANGS_AFTER)) == ("a after 0", "b after 0")
    assert not kit.control.limit(call).release_hold()


# -- in other pools, processes and circumstances -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pool", "late"), [("prefork", True), ("prefork", False), ("solo", True), ("solo", False), ("gevent", False)]
)
def test_on_every_pool(
    workers: Workers, journal: Journal, state: State, redis: Redis, pool: str, *, late: bool
) -> None:
    """The test kit has the pool of threads. A task without a limit fails with the reason."""
    running = workers.start(LIMITED, concurrency=2, pool=pool, conf={"task_acks_late": late})
    app = workers.app(LIMITED)
    result = app.call.delay("a")
    journal.wait_started(2, "a")
    journal.let_go("a")
    assert result.get(timeout=HANGS_AFTER) == "a after 0"
    with pytest.raises(ConfigurationError, match="raised RateLimited, but it has no limit"):
        app.call_without.delay("b").get(timeout=HANGS_AFTER)
    state.wait_empty()
    until(lambda: not redis.exists("unacked_index"))
    assert "AttributeError" not in running.log()


@pytest.mark.throttle(throttle_on_store_error="run")
def test_without_a_permit_there_is_no_line_to_go_back_to(kit: ThrottleTest) -> None:
    with kit.cut_store(), pytest.raises(StoreUnavailable, match="raised RateLimited, but it ran without a permit"):
        call.delay("a").get(timeout=HANGS_AFTER)


def test_a_limit_that_the_task_does_not_have_is_refused_by_name(throttle: ThrottleTest) -> None:
    """It delays no other task. Another thread than that of the body reports the failure."""
    with throttle.run_worker():
        results = [call_late.delay(f"{number}", limit="nope") for number in range(60)]
        for each in results:
            with pytest.raises(
                ConfigurationError, match=r"raised RateLimited\(limit='nope'\), .* only 'limited.call_late'"
            ):
                each.get(timeout=HANGS_AFTER)
        assert len(throttle.drain().failed) == len(ran) == 60
        assert throttle.control.limit(call_late).status().held_back is None
        throttle.assert_parked(call_late.delay("a", limit=call_late.name))
        wait_acknowledged(throttle)
    assert app.control.purge() == 0
