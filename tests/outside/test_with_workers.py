"""Permits outside of tasks, beside the tasks of a worker."""

from __future__ import annotations

import threading

import pytest
from celery import Celery

from celery_throttle import Limit, Throttled
from celery_throttle.testing import ThrottleTest
from tests.support.kit import new_app, throttle_server  # noqa: F401 - a fixture
from tests.support.waiting import HANGS_AFTER, until

pytestmark = pytest.mark.usefixtures("throttle_worker")

app: Celery = new_app("beside")
one, booked = Limit("one", 1), Limit("booked", rate="1/d")
order: list[str] = []


@pytest.fixture
def throttle_celery_app() -> Celery:
    order.clear()
    return app


@app.task(shared=False, base=Throttled, limit=one)
def call(label: str) -> None:
    order.append(label)


@app.task(shared=False, base=Throttled, limit=booked)
def book() -> None: ...


def test_in_turn_with_the_tasks_that_wait(throttle: ThrottleTest) -> None:
    def want() -> None:
        with one.acquire(HANGS_AFTER, app=app):
            order.append("outside")

    other = threading.Thread(target=want)
    with throttle.hold(one):
        throttle.assert_parked(call.delay("a"), place=1)
        other.start()
        until(lambda: throttle.control.limit(one).status().parked == 2)
        throttle.assert_parked(call.delay("b"), place=3)
    other.join(HANGS_AFTER)
    throttle.drain()
    assert order == ["a", "outside", "b"]


def test_a_booked_start_is_not_counted_again(throttle: ThrottleTest) -> None:
    start = booked.reserve(app=app)
    late = book.delay()
    throttle.assert_parked(late, behind=booked)
    throttle.assert_started(book.apply_async(eta=start))
    throttle.assert_parked(late)
