"""Permits outside of tasks, beside tasks on real workers."""

from __future__ import annotations

import threading

import pytest
from redis import Redis

from celery_throttle import Limit
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.workers import Workers

LIMITED = "tests.support.apps.limited"


@pytest.fixture
def state(redis: Redis) -> State:
    return State.at(redis)


def test_in_turn_with_the_tasks_that_wait(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(LIMITED, concurrency=3)
    limit = Limit(app.call_one.name, 1)
    journal.let_go("a", "b")
    order: list[str] = []

    def want() -> None:
        with limit.acquire(30, app=app.app):
            order.extend(run.label for run in journal.runs())
            order.append("outside")

    other = threading.Thread(target=want)
    with limit.acquire(app=app.app):
        app.call_one.delay("a")
        state.wait_parked(1)
        other.start()
        state.wait_parked(2)
        app.call_one.delay("b")
        state.wait_parked(3)
        assert not journal.runs()
    other.join(30)
    journal.wait_finished(2)
    assert order == ["a", "outside"]
    state.wait_empty()


def test_a_booked_start_is_not_counted_again(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(LIMITED, concurrency=2)
    limit = Limit("booked", rate="1/d")
    start = limit.reserve(app=app.app)
    app.book.delay("late")
    state.wait_parked(1)
    app.book.apply_async(("early",), eta=start)
    journal.wait_finished(1, "early")
    assert state.count == 1
