"""Tasks that run once and publish themselves again: a retry is the same call, however it comes about."""

from __future__ import annotations

import logging
from functools import partial
from threading import Event
from typing import Any

import pytest
from celery import chain

from celery_throttle import Throttled
from celery_throttle.testing import ThrottleTest
from tests.support.journal import Journal
from tests.support.kit import assert_all_ended, new_app, task_maker
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers
from tests.workers.conftest import ONCE

QUICKLY = 15.0

app: Any = new_app("once_again")
#: Lets a task end that has replaced itself.
may_end = Event()


@pytest.fixture
def throttle_celery_app() -> Any:
    may_end.clear()
    return app


def take(self: Any, todo: list[str]) -> str:
    """Take one from its own list at each attempt."""
    label = todo.pop()
    if todo:
        raise self.retry(countdown=0)
    return label


def try_again(self: Any, label: str, first: bool = False) -> str:
    if first and not self.request.retries:
        raise self.retry(args=[label], kwargs={"first": first}, countdown=0)
    return label


def give_place(self: Any, label: str, to: str) -> str:  # noqa: ARG001 - of its identity
    """Replace itself with another singleton, and not be over yet when that comes to a worker."""
    try:
        return str(self.replace(plain.s(to)))
    finally:
        may_end.wait(QUICKLY)


make = partial(task_maker(app), base=Throttled, singleton=True)
plain = make("plain")
started = make("started", lock_until="started")
takes = make("takes", take, bind=True)
takes_one = make("takes_one", take, bind=True, limit=1)
again = make("again", try_again, bind=True, on_conflict="raise")
again_started = make("again_started", try_again, bind=True, lock_until="started")
gives_place = make("gives_place", give_place, bind=True)


# -- in a worker of this process ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("throttle_worker")
def test_one_sent_by_name_keeps_its_lock_with_other_arguments(throttle: ThrottleTest) -> None:
    assert app.send_task(takes.name, [["b", "a"]]).get(timeout=QUICKLY) == "b"
    throttle.assert_ran(takes, times=2)
    throttle.assert_not_locked(takes.s(["b", "a"]))
    assert_all_ended(throttle)


@pytest.mark.usefixtures("throttle_worker")
def test_one_sent_by_name_that_was_parked_keeps_its_lock(throttle: ThrottleTest) -> None:
    with throttle.hold(takes_one):
        result = app.send_task(takes_one.name, [["b", "a"]])
        throttle.assert_parked(result)
        throttle.assert_locked(takes_one.s(["b", "a"]))
    assert result.get(timeout=QUICKLY) == "b"
    throttle.assert_not_locked(takes_one.s(["b", "a"]))
    assert_all_ended(throttle)


@pytest.mark.usefixtures("throttle_worker")
def test_task_with_a_lock_until_its_start_is_tried_again_without(
    throttle: ThrottleTest, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no duplicate of the task that has the lock by then."""
    caplog.set_level(logging.INFO, "celery_throttle")
    with throttle.gate() as gate:
        first = again_started.delay("a", first=True)
        gate.wait_for(1)
        second = again_started.apply_async(("a", True), queue="elsewhere")
    assert first.get(timeout=QUICKLY) == "a"
    assert again_started.locked_by("a", True).task_id == second.id
    assert "duplicate" not in caplog.text
    with throttle.run_worker(queues=["elsewhere"]):
        assert second.get(timeout=QUICKLY) == "a"
        throttle.assert_ran(again_started, times=4)


@pytest.mark.usefixtures("throttle_worker")
def test_task_locked_until_its_start_follows_itself_in_chain(throttle: ThrottleTest) -> None:
    assert chain(*[started.si("a")] * 3).apply_async().get(timeout=QUICKLY) == "a"
    throttle.assert_ran(started.s("a"), times=3)


@pytest.mark.usefixtures("throttle_worker")
def test_a_retry_keeps_the_options_of_its_call(throttle: ThrottleTest) -> None:
    """It is a duplicate by then: it waits, by the choice of its caller."""
    with throttle.gate() as gate:
        options = {"on_conflict": "return_existing"}
        first = again.apply_async(("a", True), task_id="first", throttle=options)
        gate.wait_for(1)
        assert again.unlock("a", True)
        second = again.delay("a", True)
        gate.wait_for(2)
        gate.open(1)
        throttle.assert_parked(first)
    assert second.get(timeout=QUICKLY) == first.get(timeout=QUICKLY) == "a"
    throttle.assert_ran(again, times=3)


@pytest.mark.usefixtures("throttle_worker")
def test_task_replaced_before_its_end_keeps_no_lock(throttle: ThrottleTest) -> None:
    """Both have the same task id, but not the same lock."""
    result = gives_place.delay("a", "b")
    until(lambda: any("Another delivery" in each for each in throttle.control.explain(result).reasons))
    may_end.set()
    assert result.get(timeout=QUICKLY) == "b"
    throttle.assert_not_locked(gives_place.s("a", "b"))
    assert_all_ended(throttle)


# -- of a lost process -------------------------------------------------------------------------------------------------


@pytest.fixture
def once(workers: Workers) -> Any:
    """The app of the processes, with one worker."""
    return workers.start_app(ONCE, concurrency=3)


def test_task_with_a_lost_process_keeps_its_identity(once: Any, journal: Journal, state: State) -> None:
    first = once.dies.apply_async(("a", 1), throttle={"unique_on": ["label"]})
    assert first.get(timeout=QUICKLY) == "a 1"
    state.wait_empty()
    assert journal.order() == ["a", "a"]
    second = once.dies.apply_async(("a", 2), throttle={"unique_on": ["label"]})
    assert second.id != first.id


def test_one_whose_process_was_lost_is_let_into_a_full_line(once: Any, journal: Journal, state: State) -> None:
    first = journal.wait_begun(once.dies_full.delay("dies"))
    second = once.dies_full.delay("waits")
    state.wait_parked(1)
    journal.let_go("dies")
    assert second.get(timeout=QUICKLY) == "waits"
    assert first.get(timeout=QUICKLY) == "dies"
