"""Tasks that get a "slow down" from outside, and those that may not even wait."""

from __future__ import annotations

import pytest
from celery import chord

from celery_throttle import ConfigurationError, LimitExceeded, StoreUnavailable, ThrottleControl, ThrottleError
from tests.conftest import new_server
from tests.failures.tools import unacknowledged
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers

LIMITED = "tests.support.apps.limited"


def runs_of(journal: Journal, label: str) -> int:
    return sum(run.label == label for run in journal.runs())


@pytest.mark.parametrize("name", ["call", "call_late", "call_once"])
def test_a_rate_limited_task_comes_again_without_a_retry(
    workers: Workers, journal: Journal, state: State, name: str
) -> None:
    workers.start(LIMITED, concurrency=2)
    result = getattr(workers.app(LIMITED), name).delay("a")
    until(lambda: runs_of(journal, "a") >= 3)
    journal.let_go("a")
    assert result.get(timeout=20) == "a after 0"
    assert {run.task_id for run in journal.runs()} == {result.id}
    state.wait_empty()


@pytest.mark.parametrize("late", [False, True])
def test_after_so_many_rounds_it_fails(workers: Workers, journal: Journal, state: State, *, late: bool) -> None:
    """The count goes with the task from worker to worker."""
    workers.start_many(2, LIMITED, concurrency=1, conf={"task_acks_late": late})
    result = workers.app(LIMITED).call_twice_more.delay("a")
    with pytest.raises(ThrottleError, match=r"raised RateLimited \(asked too often, again in 0.1 s\) after 2 rounds"):
        result.get(timeout=20)
    assert runs_of(journal, "a") == 3
    assert result.state == "FAILURE"
    state.wait_empty()
    until(lambda: not unacknowledged(workers))


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_on_every_pool(workers: Workers, journal: Journal, state: State, pool: str) -> None:
    workers.start(LIMITED, concurrency=2, pool=pool)
    result = workers.app(LIMITED).call.delay("a")
    until(lambda: runs_of(journal, "a") >= 2)
    journal.let_go("a")
    assert result.get(timeout=20) == "a after 0"
    state.wait_empty()


def test_no_task_starts_during_a_hold_and_it_is_first_afterwards(
    workers: Workers, journal: Journal, state: State
) -> None:
    app = workers.start_app(LIMITED, count=2, concurrency=2)
    app.call_one.delay("first", 3.0)
    until(lambda: runs_of(journal, "first") == 1)
    state.wait_parked(1)
    journal.let_go("first", "second", "third")
    app.call_one.delay("second")
    state.wait_parked(2)
    app.call_one.delay("third")
    state.wait_parked(3)
    app.plain.delay("plain")
    journal.wait_finished(1, "plain")
    assert state.count == 3, "they wait, and plain tasks do not"
    journal.wait_finished(5)
    order = [run.label for run in journal.runs() if run.label != "plain"]
    assert order == ["first", "first", "second", "third"]
    state.wait_empty()


def test_only_its_key_is_held(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(LIMITED, concurrency=2)
    journal.let_go("b")
    app.call_for.delay("a", "acme", 600)
    state.wait_parked(1)
    assert app.call_for.delay("b", "other").get(timeout=20) == "b after 0"
    assert state.count == 1
    assert runs_of(journal, "a") == 1


def test_a_chord_waits_for_it(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(LIMITED, concurrency=2)
    journal.let_go("b")
    result = chord([app.call.s("a"), app.call.s("b")], app.collect.s()).delay()
    until(lambda: runs_of(journal, "a") >= 2)
    journal.let_go("a")
    assert result.get(timeout=20) == ["a after 0", "b after 0"]
    state.wait_empty()


def test_it_survives_its_worker(workers: Workers, journal: Journal, state: State) -> None:
    """Acknowledged early, killed while the task is held back: the store has the message."""
    worker = workers.start(LIMITED, concurrency=1)
    result = workers.app(LIMITED).call.delay("a", 1.0)
    until(lambda: runs_of(journal, "a") == 1)
    state.wait_parked(1)
    worker.kill()
    journal.let_go("a")
    workers.start(LIMITED, concurrency=1)
    assert result.get(timeout=20) == "a after 0"
    state.wait_empty()


@pytest.mark.parametrize("pool", ["prefork", "solo"])
@pytest.mark.parametrize("late", [False, True])
def test_task_without_a_limit_fails_with_the_reason(workers: Workers, state: State, pool: str, *, late: bool) -> None:
    worker = workers.start(LIMITED, pool=pool, concurrency=1, conf={"task_acks_late": late})
    result = workers.app(LIMITED).call_without.delay("a")
    with pytest.raises(ConfigurationError, match="raised RateLimited, but it has no limit"):
        result.get(timeout=20)
    state.wait_empty()
    until(lambda: not unacknowledged(workers))
    assert "AttributeError" not in worker.log()


def test_a_limit_that_the_task_does_not_have_is_refused_by_name(workers: Workers) -> None:
    """And it delays no other task."""
    app = workers.start_app(LIMITED, concurrency=1)
    with pytest.raises(ConfigurationError, match=r"call_about raised RateLimited\(limit='nope'\), .* only 'api'"):
        app.call_about.delay("a", "nope").get(timeout=20)
    assert ThrottleControl(app.app).limit("api").status().held_back is None
    app.call_about.delay("a", "api")
    until(lambda: ThrottleControl(app.app).limit("api").status().held_back is not None)


def test_a_hold_is_ended_early(workers: Workers, journal: Journal, state: State) -> None:
    """Workers, which look on their own once an hour, get a hint."""
    app = workers.start_app(LIMITED, concurrency=2)
    limit = ThrottleControl(app.app).limit(app.call)
    for label in ("a", "b"):
        app.call.delay(label, 3600)
        until(lambda: limit.status().held_back is not None)
    state.wait_parked(2)
    journal.let_go("a", "b")
    assert limit.release_hold(why="they are back")
    journal.wait_finished(1, "a")
    journal.wait_finished(1, "b")
    assert not limit.release_hold()
    state.wait_empty()


def test_no_more_are_published_than_may_wait(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(LIMITED, concurrency=1)
    journal.wait_begun(app.crowd.delay("a"))
    app.crowd.delay("b")
    app.crowd.delay("c")
    state.wait_parked(2)
    with pytest.raises(
        LimitExceeded, match=r"crowd was not published: limit 'crowd' has 2 parked tasks, max_parked=2"
    ) as refused:
        app.crowd.delay("d")
    assert (refused.value.parked, refused.value.most, refused.value.limit) == (2, 2, "crowd")
    journal.let_go("a", "b", "c", "d")
    journal.wait_finished(3)
    app.crowd.delay("d")
    journal.wait_finished(4)
    state.wait_empty()


def test_without_a_store_it_is_published_all_the_same(workers: Workers) -> None:
    workers.conf["throttle_url"] = "redis://127.0.0.1:1/0"
    assert workers.app(LIMITED).crowd.delay("a").id


def test_where_nothing_is_throttled_it_is_a_failure(workers: Workers, journal: Journal) -> None:
    """No worker would run it again: to Celery it is an `Ignore`."""
    workers.conf["throttle_enabled"] = False
    workers.start(LIMITED)
    result = workers.app(LIMITED).call.delay("a")
    with pytest.raises(Exception, match=r"call raised RateLimited .*throttle_enabled is False"):
        result.get(timeout=20)
    assert runs_of(journal, "a") == 1


def test_without_a_permit_there_is_no_line_to_go_back_to(workers: Workers) -> None:
    with new_server(persistent=True) as store:
        workers.conf.update(throttle_url=store.url, throttle_on_store_error="run")
        worker = workers.start(LIMITED)
        store.kill()
        worker.wait_for_log("cannot reach the store")
        result = workers.app(LIMITED).call.delay("a")
        with pytest.raises(StoreUnavailable, match="raised RateLimited, but it ran without a permit"):
            result.get(timeout=20)


def test_task_naming_a_limit_that_it_lacks_fails_on_threads(workers: Workers, journal: Journal, state: State) -> None:
    """Another thread than its own reports the failure."""
    workers.conf["task_acks_late"] = True
    app = workers.start_app(LIMITED, pool="threads", concurrency=4)
    labels = [f"t{number}" for number in range(60)]
    results = [app.call_about.delay(label, "nope") for label in labels]
    until(lambda: all(each.state == "FAILURE" for each in results))
    state.wait_empty()
    assert [runs_of(journal, label) for label in labels] == [1] * 60
