"""Tasks that run once, on real workers: `singleton=True` and its options."""

from __future__ import annotations

from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError
from kombu.exceptions import EncodeError

from celery_throttle import DuplicateTask, LimitExceeded
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers
from tests.workers.conftest import ONCE

QUICKLY = 15.0


@pytest.fixture
def app(workers: Workers) -> Any:
    """The app, with two workers."""
    workers.conf["throttle_lease"] = 60
    workers.start_many(2, ONCE, concurrency=3)
    return workers.app(ONCE)


def send_by_name(app: Any, task: Any, *args: Any, **options: Any) -> Any:
    """Send as a producer without the library does."""
    return app.app.send_task(task.name, args=args, **options)


def test_a_second_call_gets_the_first_one(app: Any, journal: Journal, state: State) -> None:
    first = app.hold.delay("a")
    assert app.hold.delay(label="a").id == first.id  # queued or running, by position or by name
    journal.wait_running(1, "a")
    assert app.hold.delay("a").id == first.id
    locked = app.hold.locked_by("a")
    assert (locked.task_id, locked.state) == (first.id, "running")
    other = app.hold.delay("b")
    assert other.id != first.id
    journal.let_go("a", "b")
    assert first.get(timeout=QUICKLY) == "a"
    other.get(timeout=QUICKLY)
    until(lambda: app.hold.locked_by("a") is None, timeout=QUICKLY)
    again = app.hold.delay("a")
    assert again.id != first.id
    assert again.get(timeout=QUICKLY) == "a"
    assert sorted(journal.order()) == ["a", "a", "b"]
    tokens = [event["token"] for event in journal.events() if event["event"] == "fence" and event["label"] == "a"]
    assert tokens == sorted(set(tokens))
    state.wait_empty()


def test_a_duplicate_from_elsewhere_has_the_outcome_of_the_first(app: Any, journal: Journal, state: State) -> None:
    """`send_task`, another language, a beat without the task: the gate catches calls that apply_async has not seen."""
    first = journal.wait_begun(app.hold.delay("a"))
    others = [send_by_name(app, app.hold, "a") for _ in range(3)]
    state.wait_parked(3)
    journal.let_go("a")
    assert first.get(timeout=QUICKLY) == "a"
    assert [other.get(timeout=QUICKLY) for other in others] == ["a"] * 3
    assert journal.order() == ["a"]
    state.wait_empty()


def test_a_chord_with_duplicates_completes(app: Any, journal: Journal, state: State) -> None:
    journal.wait_begun(app.hold.delay("part 0"))
    header = [app.hold.s(f"part {number % 15}") for number in range(20)]
    result = chord(header)(app.collect.s())
    journal.wait_running(3)  # one worker's slots at least: the other may have prefetched duplicates only
    journal.let_go(*(f"part {number}" for number in range(15)))
    assert result.get(timeout=QUICKLY) == sorted(f"part {number % 15}" for number in range(20))
    assert sorted(journal.order()) == sorted(["collect", *(f"part {number}" for number in range(15))])
    state.wait_empty()


def test_a_group_and_a_chain_with_duplicates_complete(app: Any, journal: Journal, state: State) -> None:
    first = journal.wait_begun(app.hold.delay("a"))
    parts = group(app.hold.s("a"), app.quick.s("b"), app.hold.s("a")).apply_async()
    links = chain(app.quick.s("c"), app.hold.si("a"), app.note.s("after")).apply_async()
    last = chain(app.quick.s("d"), app.hold.si("a")).apply_async()
    state.wait_parked(4)
    journal.let_go("a")
    assert parts.get(timeout=QUICKLY) == ["a", "b", "a"]
    assert links.get(timeout=QUICKLY) == "after"
    assert last.get(timeout=QUICKLY) == "a"
    assert first.get(timeout=QUICKLY) == "a"
    assert sorted(journal.order()) == ["a", "after: a", "b", "c", "d"]
    state.wait_empty()


def test_the_duplicates_of_a_task_with_a_backend_of_its_own_end(app: Any, journal: Journal, state: State) -> None:
    first = [app.hold_elsewhere.delay(label) for label in ("a", "fails")]
    journal.wait_running(2)
    others = [send_by_name(app, app.hold_elsewhere, label) for label in ("a", "fails")]
    links = chain(app.hold_elsewhere.si("a"), app.note.s("after")).apply_async()
    state.wait_parked(3)
    journal.let_go("a", "fails")
    assert links.get(timeout=QUICKLY) == "after"
    for a, fails in (first, [app.hold_elsewhere.AsyncResult(other.id) for other in others]):
        assert a.get(timeout=QUICKLY) == "a"
        with pytest.raises(ValueError, match="fails"):
            fails.get(timeout=QUICKLY)
    assert "after: a" in journal.order()
    state.wait_empty()


def test_the_callbacks_of_both_callers_fire(app: Any, journal: Journal) -> None:
    journal.wait_begun(app.hold.apply_async(["a"], link=app.note.s("first")))
    app.hold.apply_async(["a"], link=app.note.s("second"))
    failing = journal.wait_begun(app.fails_finished.apply_async(["f"], link_error=app.note_error.s("first")))
    app.fails_finished.apply_async(["f"], link_error=app.note_error.s("second"))
    journal.let_go("a", "f")
    with pytest.raises(ValueError, match="f"):
        failing.get(timeout=QUICKLY)
    journal.wait_finished(6)
    assert sorted(journal.order()) == ["a", "f", "first: a", "first: f", "second: a", "second: f"]


def test_remembered_call_does_not_run_again(app: Any, journal: Journal, state: State) -> None:
    first = app.charge.delay("17", amount=5)
    assert first.get(timeout=QUICKLY) == "17: 5"
    until(lambda: app.charge.locked_by("17").state == "done", timeout=QUICKLY)
    assert app.charge.delay("17", amount=6).id == first.id
    other = send_by_name(app, app.charge, "17", 7)
    assert other.get(timeout=QUICKLY) == "17: 5"
    # The very same message once more.
    app.app.send_task(app.charge.name, args=["17", 5], task_id=first.id)
    result = chord([app.charge.s("17"), app.charge.s("18", 1)])(app.collect.s())
    assert result.get(timeout=QUICKLY) == ["17: 5", "18: 1"]
    state.wait_empty()
    assert sorted(journal.order()) == ["17", "18", "collect"]
    assert app.charge.unlock("17")
    assert app.charge.delay("17", amount=8).get(timeout=QUICKLY) == "17: 8"


def test_raise(app: Any, journal: Journal, state: State) -> None:
    first = app.hold_raise.delay("a")
    with pytest.raises(DuplicateTask, match=f"pending, running or remembered already, as {first.id}") as raised:
        app.hold_raise.delay("a")
    assert raised.value.existing_id == first.id
    journal.wait_running(1, "a")
    elsewhere = send_by_name(app, app.hold_raise, "a")
    with pytest.raises(DuplicateTask, match=first.id):
        elsewhere.get(timeout=QUICKLY)
    whole = chord([app.hold_raise.s("a"), app.quick.s("b")])(app.collect.s())
    with pytest.raises((DuplicateTask, ChordError), match=first.id):
        whole.get(timeout=QUICKLY)
    journal.let_go("a")
    first.get(timeout=QUICKLY)
    assert "collect" not in journal.order()
    state.wait_empty()


def test_skip(app: Any, journal: Journal, state: State) -> None:
    first = app.hold_skip.delay("a")
    skipped = app.hold_skip.delay("a")
    assert (skipped.id != first.id, skipped.ready(), skipped.state) == (True, True, "REVOKED")
    journal.wait_running(1, "a")
    elsewhere = send_by_name(app, app.hold_skip, "a")
    for result in (skipped, app.app.AsyncResult(skipped.id), elsewhere):
        with pytest.raises(TaskRevokedError, match=f"^skipped: .*{first.id}"):
            result.get(timeout=QUICKLY)
        assert isinstance(result.get(timeout=QUICKLY, propagate=False), TaskRevokedError)
    with pytest.raises(TaskRevokedError, match=r"^skipped: "):
        app.hold_skip.apply_async(("a",), ignore_result=True).get(timeout=QUICKLY)
    whole = chord([app.hold_skip.s("a"), app.quick.s("b")])(app.collect.s())
    state.wait_parked(1)
    journal.let_go("a")
    assert whole.get(timeout=QUICKLY) == ["a", "b"]
    assert sorted(journal.order()) == ["a", "b", "collect"]
    state.wait_empty()


def test_skip_in_a_chain_that_finds_another_lock_on_arrival(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.app(ONCE)
    workers.start(ONCE)
    links = chain(app.hold_skip.si("a").set(queue="elsewhere"), app.note.s("after")).apply_async()
    assert app.hold_skip.unlock("a")
    journal.wait_begun(app.hold_skip.delay("a"))
    workers.start(ONCE, queues="elsewhere")
    state.wait_parked(1)
    journal.let_go("a")
    assert links.get(timeout=QUICKLY) == "after"
    state.wait_empty()


def test_replace(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.app(ONCE)
    old = [app.hold_replace.delay(f"old {number}") for number in range(5)]
    new = app.hold_replace.delay("new")
    workers.start_many(2, ONCE, concurrency=3)
    journal.wait_running(1, "new")
    until(lambda: all(result.state == "REVOKED" for result in old), timeout=QUICKLY)
    assert app.hold_replace.delay("late").id == new.id  # it runs: nothing to replace
    journal.let_go("new")
    new.get(timeout=QUICKLY)
    assert journal.order() == ["new"]
    state.wait_empty()


def test_keep_last(app: Any, journal: Journal, state: State) -> None:
    first = journal.wait_begun(app.hold_last.delay("first"))
    waiting = [app.hold_last.delay(f"waiting {number}") for number in range(5)]
    last = app.hold_last.delay("last")
    assert len({first.id, last.id, *(result.id for result in waiting)}) == 7
    until(lambda: all(result.state == "REVOKED" for result in waiting), timeout=QUICKLY)
    assert app.hold_last.locked_by("x").next_id == last.id
    journal.let_go("first", "last")
    assert last.get(timeout=QUICKLY) == "last"
    assert journal.order() == ["first", "last"]
    state.wait_empty()
    until(lambda: app.hold_last.locked_by("x") is None, timeout=QUICKLY)


def test_unpublished_newest_replaces_no_task(app: Any, journal: Journal, state: State) -> None:
    app.hold_newest.delay("busy")
    app.hold_last.delay("first")
    journal.wait_running(2)
    replaced, last = app.hold_newest.delay("a", 1), app.hold_last.delay("last")
    state.wait_parked(2)
    for task in (app.hold_newest, app.hold_last):
        with pytest.raises(EncodeError):
            task.delay("a", payload=object())
    journal.let_go("busy", "first", "a", "last")
    assert replaced.get(timeout=QUICKLY) == "a: 1"
    assert last.get(timeout=QUICKLY) == "last"
    state.wait_empty()


def test_until_started(app: Any, journal: Journal, state: State) -> None:
    first = journal.wait_begun(app.hold_started.delay("a"))
    second = app.hold_started.delay("a")
    assert second.id != first.id
    journal.wait_running(2, "a")
    journal.let_go("a")
    first.get(timeout=QUICKLY)
    second.get(timeout=QUICKLY)
    state.wait_empty()


def test_until_expires_a_failure_keeps_the_lock(app: Any, journal: Journal) -> None:
    first = app.fails.delay("a")
    with pytest.raises(ValueError, match="a"):
        first.get(timeout=QUICKLY)
    until(lambda: app.fails.locked_by("a").state == "failed", timeout=QUICKLY)
    assert app.fails.delay("a").id == first.id
    elsewhere = send_by_name(app, app.fails, "a")
    with pytest.raises(ValueError, match="a"):
        elsewhere.get(timeout=QUICKLY)
    assert journal.order() == ["a"]


def test_until_expires(app: Any, journal: Journal) -> None:
    first = app.hourly.apply_async(["a"], expires=600)  # of its message; the lock is for three seconds
    first.get(timeout=QUICKLY)
    assert app.hourly.delay("a").id == first.id
    until(lambda: app.hourly.locked_by("a") is None, timeout=QUICKLY)
    second = app.hourly.delay("a")
    second.get(timeout=QUICKLY)
    assert second.id != first.id
    assert journal.order() == ["a", "a"]


def test_retries_keep_the_lock(app: Any, journal: Journal, state: State) -> None:
    first = app.retries.delay("a")
    duplicate = send_by_name(app, app.retries, "a")
    journal.wait_running(1, "a")
    assert app.retries.delay("a").id == first.id
    journal.wait_started(3, "a")
    assert app.retries.delay("a").id == first.id
    journal.let_go("a")
    assert first.get(timeout=QUICKLY) == "a"
    assert duplicate.get(timeout=QUICKLY) == "a"
    assert {run.task_id for run in journal.runs()} == {first.id}
    state.wait_empty()


def test_a_countdown_keeps_the_lock_and_a_revoke_frees_it(workers: Workers, journal: Journal) -> None:
    app = workers.app(ONCE)
    workers.start(ONCE)
    first = app.hold.apply_async(["a"], countdown=0.5)
    assert app.hold.delay("a").id == first.id
    journal.let_go("a")
    first.get(timeout=QUICKLY)

    later = app.hold.apply_async(["b"], countdown=3600)
    assert app.hold.locked_by("b").task_id == later.id
    assert app.hold.locked_by("b").expires_in > 3600 + 80_000
    later.revoke()
    soon = app.hold.apply_async(["c"], expires=0.01, countdown=0.3)
    until(lambda: soon.state == "REVOKED", timeout=QUICKLY)
    until(lambda: app.hold.locked_by("c") is None, timeout=QUICKLY)


def test_a_lock_lasts_until_its_task_expires(workers: Workers) -> None:
    app = workers.app(ONCE)
    app.quick_expiring.delay("a")
    app.quick_expiring.apply_async(["b"], expires=900)
    assert 500 < app.quick_expiring.locked_by("a").expires_in <= 600
    assert 800 < app.quick_expiring.locked_by("b").expires_in <= 900


def test_a_revoked_duplicate_leaves_the_outcome_to_another(workers: Workers, journal: Journal, state: State) -> None:
    """Both would have asked for it, one comes only when the first has ended."""
    app = workers.app(ONCE)
    workers.start(ONCE)
    first = journal.wait_begun(app.hold.delay("a"))
    parked = app.hold.apply_async(["a"], task_id="parked")
    late = app.hold.apply_async(["a"], task_id="late", queue="elsewhere")
    state.wait_parked(1)
    parked.revoke()
    workers.wait_discarded(parked, timeout=QUICKLY)
    until(lambda: parked.state == "REVOKED", timeout=QUICKLY)
    state.wait_parked(0)
    journal.let_go("a")
    assert first.get(timeout=QUICKLY) == "a"
    until(lambda: app.hold.locked_by("a") is None, timeout=QUICKLY)
    workers.start(ONCE, queues="elsewhere")
    assert late.get(timeout=QUICKLY) == "a"
    assert journal.order() == ["a"]
    state.wait_empty()


def test_a_revoked_task_in_the_queue_frees_its_lock(workers: Workers, journal: Journal) -> None:
    app = workers.app(ONCE)
    worker = workers.start(ONCE, concurrency=1)
    journal.wait_begun(app.hold.delay("busy"))
    victim = app.hold_one.delay("a")
    victim.revoke()
    journal.let_go("busy", "a")
    workers.wait_discarded(victim, timeout=QUICKLY)
    until(lambda: victim.state == "REVOKED", timeout=QUICKLY)
    until(lambda: app.hold_one.locked_by("a") is None, timeout=QUICKLY)
    assert app.hold_one.delay("a").get(timeout=QUICKLY) == "a"
    assert worker.running


def test_lock_comes_before_the_limit_and_stays_while_parked(app: Any, journal: Journal, state: State) -> None:
    first = journal.wait_begun(app.hold_one.delay("a"))
    second = app.hold_one.delay("b")
    state.wait_parked(1)
    assert app.hold_one.locked_by("b").state == "queued"
    assert app.hold_one.delay("b").id == second.id
    duplicates = [send_by_name(app, app.hold_one, "b"), send_by_name(app, app.hold_one, "a")]
    state.wait_parked(3)
    assert state.used == {app.hold_one.name: 1}
    journal.let_go("a")
    assert first.get(timeout=QUICKLY) == "a"
    journal.wait_running(1, "b")
    journal.let_go("b")
    assert second.get(timeout=QUICKLY) == "b"
    assert [result.get(timeout=QUICKLY) for result in duplicates] == ["b", "a"]
    assert journal.order() == ["a", "b"]
    state.wait_empty()


def test_a_duplicate_needs_no_place_in_a_full_line(app: Any, journal: Journal, state: State) -> None:
    first = journal.wait_begun(app.hold_full.delay("a"))
    second = app.hold_full.delay("b")
    state.wait_parked(1)
    assert app.hold_full.delay("b").id == second.id
    with pytest.raises(LimitExceeded):
        app.hold_full.delay("c")
    assert app.hold_full.locked_by("c") is None
    parts = group(app.hold_full.s("a"), app.hold_full.s("b")).apply_async()
    by_name = send_by_name(app, app.hold_full, "a")
    state.wait_parked(4)
    journal.let_go("a", "b")
    assert first.get(timeout=QUICKLY) == by_name.get(timeout=QUICKLY) == "a"
    assert parts.get(timeout=QUICKLY) == ["a", "b"]
    state.wait_empty()


def test_options_of_a_call(app: Any, journal: Journal) -> None:
    first = app.charge.apply_async(["17", 5], throttle={"unique_on": ["amount"]})
    first.get(timeout=QUICKLY)
    assert app.charge.apply_async(["18", 5], throttle={"unique_on": ["amount"]}).id == first.id
    with pytest.raises(DuplicateTask):
        app.charge.s("18", 5).set(throttle={"unique_on": ["amount"], "on_conflict": "raise"}).apply_async()
    assert journal.order() == ["17"]
