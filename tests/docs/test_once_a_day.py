"""What the section "Once a day" promises, with its code and a real worker."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from celery_throttle import Throttled
from tests.docs.pages import app_of
from tests.support.kit import new_app, task_maker, throttle_celery_app, throttle_server

if TYPE_CHECKING:
    from celery_throttle.testing import ThrottleTest

__all__ = ["throttle_celery_app", "throttle_server"]

APP = new_app("shop")
PAGE = app_of("reference/run-once.md", APP)
REPORT = PAGE["report"]
HOUR = 3600

pytestmark = pytest.mark.usefixtures("throttle_worker")


def of_a_night() -> None: ...


NIGHTLY = task_maker(APP)("nightly", of_a_night, base=Throttled, singleton=True, remember=24 * HOUR)


class Clock(datetime):
    """A clock whose day a test sets."""

    day = 1

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime(2026, 11, cls.day, tzinfo=tz)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(PAGE, "datetime", Clock)
    monkeypatch.setattr(Clock, "day", 1)
    return Clock


def run_for(throttle: ThrottleTest, task: Any, seconds: int, *args: Any) -> Any:
    """Publish a task; let its body take these seconds, by the clock of the store."""
    with throttle.gate():
        result = task.delay(*args)
        throttle.assert_started(result)
        throttle.advance(seconds)
    throttle.drain()
    return result


def test_remember_for_a_day_leaves_out_every_second_day(throttle: ThrottleTest) -> None:
    first = run_for(throttle, NIGHTLY, 600)
    throttle.advance(24 * HOUR - 600)
    assert NIGHTLY.delay().id == first.id  # the second day
    throttle.advance(24 * HOUR)
    assert NIGHTLY.delay().id != first.id  # the third


def test_with_the_day_in_its_identity_a_task_runs_each_day(throttle: ThrottleTest, clock: Any) -> None:
    first = run_for(throttle, REPORT, 600, 7)
    assert REPORT.delay(7).id == first.id
    throttle.advance(24 * HOUR - 600)
    clock.day = 2
    second = REPORT.delay(7)
    assert second.id != first.id
    throttle.drain()
    assert REPORT.delay(7).id == second.id
    throttle.assert_ran(REPORT, times=2)


def test_the_day_is_that_of_the_call(throttle: ThrottleTest, clock: Any) -> None:
    with throttle.gate():
        before_midnight = REPORT.apply_async((7,), countdown=0.5)
        clock.day = 2
        throttle.assert_started(before_midnight)
        today = REPORT.delay(7)
        throttle.assert_started(today)
        assert len({before_midnight.id, today.id}) == 2


def test_a_call_by_name_has_the_day_when_it_comes_to_a_worker(throttle: ThrottleTest, clock: Any) -> None:
    clock.day = 2
    with throttle.gate():
        by_name = APP.send_task("shop.report", (7,))
        throttle.assert_started(by_name.id)
        assert REPORT.delay(7).id == by_name.id
        clock.day = 1
        assert REPORT.delay(7).id != by_name.id
