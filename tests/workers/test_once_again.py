"""Tasks that run once and publish themselves again: a retry is the same call, however it comes about."""

from __future__ import annotations

from typing import Any

import pytest
from celery import chain

from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers
from tests.workers.conftest import ONCE

QUICKLY = 15.0


@pytest.fixture
def app(workers: Workers) -> Any:
    """The app, with one worker."""
    workers.start(ONCE, concurrency=3)
    return workers.app(ONCE)


def test_one_sent_by_name_keeps_its_lock_with_other_arguments(app: Any, journal: Journal, state: State) -> None:
    result = app.app.send_task(app.takes.name, args=[["b", "a"]])
    assert result.get(timeout=QUICKLY) == "b"
    assert journal.order() == ["a", "b"]
    state.wait_empty()
    until(lambda: app.takes.locked_by(["b", "a"]) is None, timeout=QUICKLY)


def test_one_sent_by_name_that_was_parked_keeps_its_lock(app: Any, state: State, journal: Journal) -> None:
    journal.wait_begun(app.takes_one.delay(["x", "busy"]))
    result = app.app.send_task(app.takes_one.name, args=[["b", "a"]])
    state.wait_parked(1)
    journal.let_go("busy", "a")
    assert result.get(timeout=QUICKLY) == "b"
    state.wait_empty()
    until(lambda: app.takes_one.locked_by(["b", "a"]) is None, timeout=QUICKLY)


def test_task_with_a_lost_process_keeps_its_identity(app: Any, journal: Journal, state: State) -> None:
    first = app.dies.apply_async(("a", 1), throttle={"unique_on": ["label"]})
    assert first.get(timeout=QUICKLY) == "a 1"
    state.wait_empty()
    assert journal.order() == ["a", "a"]
    second = app.dies.apply_async(("a", 2), throttle={"unique_on": ["label"]})
    assert second.id != first.id


def test_one_whose_process_was_lost_is_let_into_a_full_line(app: Any, journal: Journal, state: State) -> None:
    first = journal.wait_begun(app.dies_full.delay("dies"))
    second = app.dies_full.delay("waits")
    state.wait_parked(1)
    journal.let_go("dies")
    assert second.get(timeout=QUICKLY) == "waits"
    assert first.get(timeout=QUICKLY) == "dies"


def test_task_with_a_lock_until_its_start_is_tried_again_without(app: Any, journal: Journal) -> None:
    first = journal.wait_begun(app.again_started.delay("a"))
    second = app.again_started.apply_async(["a"], queue="elsewhere")
    journal.let_go("a")
    assert first.get(timeout=QUICKLY) == "a"
    assert app.again_started.locked_by("a").task_id == second.id
    assert journal.order() == ["a", "a"]


def test_task_locked_until_its_start_follows_itself_in_chain(app: Any, journal: Journal) -> None:
    journal.let_go("a")
    links = chain(*[app.hold_started.si("a")] * 3).apply_async()
    assert links.get(timeout=QUICKLY) == "a"
    assert journal.order() == ["a"] * 3


def test_a_retry_keeps_the_options_of_its_call(app: Any, journal: Journal, state: State) -> None:
    """It is a duplicate by then: it waits, by the choice of its caller."""
    first = journal.wait_begun(
        app.again.apply_async(("a", True), task_id="first", throttle={"on_conflict": "return_existing"})
    )
    assert app.again.unlock("a", True)
    second = app.again.delay("a", True)
    journal.wait_running(2, "a")
    journal.let_go("a", "a2")
    assert second.get(timeout=QUICKLY) == "a2"
    assert first.get(timeout=QUICKLY) == "a2"
    state.wait_empty()


def test_task_replaced_before_its_end_keeps_no_lock(app: Any, state: State, journal: Journal) -> None:
    """Both have the same task id, but not the same lock."""
    result = app.gives_place.delay("a", "b")
    until(lambda: state.has_second(result), timeout=QUICKLY)
    journal.let_go("a", "b")
    assert result.get(timeout=QUICKLY) == "b"
    state.wait_empty()
    until(lambda: app.gives_place.locked_by("a", "b") is None, timeout=QUICKLY)
