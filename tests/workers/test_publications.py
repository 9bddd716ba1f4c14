"""A task id that is used again: each call runs, and a copy of the message of one call does not."""

from __future__ import annotations

import re
from typing import Any

import pytest
from redis import Redis

from tests.failures.tools import DOORS, counts, unacknowledged
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Workers

ONCE = "tests.support.apps.once"


def send(task: Any, label: str, *, by_name: bool = False, **options: Any) -> Any:
    """Publish a call, also as an app that knows only the name of the task: its message has no header of ours."""
    if by_name:
        return task.app.send_task(task.name, [label], **options)
    return task.apply_async([label], **options)


@pytest.mark.parametrize("by_name", [False, True])
def test_each_of_several_calls_with_one_id_runs_one_after_the_other(
    workers: Workers, journal: Journal, state: State, *, by_name: bool
) -> None:
    """Published at once: a running one, and others, which wait at the broker."""
    worker = workers.start(DOORS, pool="threads", concurrency=4)
    task = workers.app(DOORS).pair
    for label in ("a", "b", "c"):
        send(task, label, by_name=by_name, task_id="fixed")
    reason = "waits here, unacknowledged: another call with this task id goes first"
    worker.wait_for_log(rf"INFO.* Task {task.name}\[fixed\] {reason}")
    assert len(journal.wait_running(1)) == 1
    journal.let_all_go()
    journal.wait_finished(3)
    state.wait_clean()
    assert counts(journal) == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_call_that_follows_a_parked_one_with_its_id_runs(
    workers: Workers, journal: Journal, state: State, *, killed: bool, by_name: bool
) -> None:
    """At once after its result; also if the worker that had parked the first is gone, and confirms nothing more."""
    parks = workers.start(DOORS, pool="threads", concurrency=1)
    app = workers.app(DOORS)
    journal.let_all_go()
    state.limit(app.hold.name).pause()
    first = send(app.hold, "first", by_name=by_name, task_id="fixed")
    state.wait_parked(first)
    if killed:
        parks.kill()
        workers.start(DOORS, pool="threads", concurrency=1)
    state.limit(app.hold.name).resume()
    assert first.get(timeout=HANGS_AFTER) == "first"
    first.forget()
    send(app.hold, "second", by_name=by_name, task_id="fixed")
    journal.wait_finished(1, "second")  # not by its result: Celery may still get the message about the first's
    assert counts(journal) == {"first": 1, "second": 1}


@pytest.mark.parametrize("by_name", [False, True])
def test_copies_of_a_message_are_dropped_with_a_line_in_the_log(
    workers: Workers, journal: Journal, state: State, *, by_name: bool
) -> None:
    """While it is parked, and after it has run."""
    app = workers.app(DOORS)
    first = send(app.hold, "a", by_name=by_name)
    with Redis.from_url(workers.broker) as broker:
        message = broker.lpop("celery")

        def copy_is_dropped(of: str) -> None:
            broker.lpush("celery", message)
            worker.wait_for_log(rf"INFO.* Task {re.escape(app.hold.name)}\[{first.id}\] is dropped: {of}")

        parks = workers.start(DOORS, pool="threads", concurrency=1)
        state.limit(app.hold.name).pause()
        broker.lpush("celery", message)
        state.wait_parked(first)
        parks.kill()  # it confirms nothing more, so that a copy may come
        worker = workers.start(DOORS, pool="threads", concurrency=1)
        copy_is_dropped("a copy of a message that is parked")
        journal.let_all_go()
        state.limit(app.hold.name).resume()
        assert first.get(timeout=HANGS_AFTER) == "a"
        copy_is_dropped("a copy of a message that has run")
    assert counts(journal) == {"a": 1}


def test_second_call_of_a_singleton_with_its_id_is_no_other_task(
    workers: Workers, journal: Journal, state: State
) -> None:
    app = workers.start_app(ONCE, pool="threads", concurrency=4)
    first = app.hold.apply_async(["a"], task_id="fixed")
    journal.wait_begun(first)
    app.hold.apply_async(["a"], task_id="fixed")
    until(lambda: len(unacknowledged(workers)) == 0 and state.throttle.explain("fixed").state == "held")
    journal.let_all_go()
    assert first.get(timeout=HANGS_AFTER) == "a"
    state.wait_clean()
    assert counts(journal) == {"a": 1}
    again = app.hold.apply_async(["a"], task_id="fixed")
    journal.wait_finished(2)
    assert again.id == "fixed"
