"""The result backend is away or hangs: when a body ends, or when a task is due a report of its state or its end."""

from __future__ import annotations

import time
from typing import Any

import pytest
from celery import Celery, exceptions
from redis import Redis

from celery_throttle.embedded import EmbeddedServer
from celery_throttle.errors import ResultLost
from tests.failures.tools import DOORS, LIMITED, ONCE, counts, redeliver, unacknowledged
from tests.support.journal import Journal
from tests.support.relay import Relay
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Workers

#: The app of `DOORS`, with the receiver in docs/reference/signals.md, which writes the state of a parked task.
SHOWN = "tests.support.apps.shown"


def send(workers: Workers, task: Any, *args: str, **options: Any) -> Any:
    """Publish by a client that has no result backend, and checks nothing."""
    return Celery(broker=workers.broker, set_as_current=False).send_task(task.name, args, **options)


def wait_acknowledged(workers: Workers) -> None:
    until(lambda: not unacknowledged(workers))


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_slots_and_permits_are_free_at_once(
    backend: EmbeddedServer, workers: Workers, journal: Journal, state: State, pool: str
) -> None:
    app = workers.start_app(DOORS, pool=pool, concurrency=2)
    app.hold.delay("throttled")
    app.plain.delay("plain")
    journal.wait_running(2)
    state.wait_parked(app.hold.apply_async(("next",), ignore_result=True))

    backend.kill()
    journal.let_go("throttled", "plain")

    journal.wait_running(1, "next")
    journal.wait_begun(app.plain.apply_async(("plain again",), ignore_result=True))
    journal.let_all_go()
    journal.wait_finished(4)
    state.wait_clean()
    assert set(counts(journal).values()) == {1}


def test_tasks_that_have_expired_keep_neither_slot_nor_permit(
    backend: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    """The ends of tasks that wait for a slot or in line cannot be reported until the backend is back."""
    worker = workers.start(DOORS, concurrency=1, conf={"worker_prefetch_multiplier": 8})
    app = workers.app(DOORS)
    journal.wait_begun(app.hold.apply_async(("first",), ignore_result=True))
    expired = [task.apply_async(("expires",), expires=4) for task in (app.hold, *[app.plain] * 4)]
    over = time.monotonic() + 4.5
    state.wait_parked(expired[0], app.hold.apply_async(("next",), ignore_result=True))
    until(lambda: len(unacknowledged(workers)) == 4)
    until(lambda: time.monotonic() > over)

    backend.kill()
    journal.let_go("first")
    worker.wait_for_log("goes back to its place in line for a moment")
    worker.wait_for_log("waits here: ")
    assert "Traceback" not in worker.log()
    backend.restart()
    app.plain.apply_async(("later",), ignore_result=True)

    journal.let_go("later")
    journal.wait_running(1, "next")
    journal.let_all_go()
    journal.wait_finished(3)
    state.wait_clean()
    wait_acknowledged(workers)
    until(lambda: {each.state for each in expired} == {"REVOKED"})
    assert counts(journal) == {"first": 1, "next": 1, "later": 1}


@pytest.mark.parametrize(("name", "args"), [("call_without", ["a"]), ("call_about", ["a", "nope"])])
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_failed_return_fails_as_soon_as_it_can_be_reported(
    backend: EmbeddedServer, workers: Workers, journal: Journal, pool: str, name: str, args: list[str]
) -> None:
    workers.conf["task_acks_late"] = True
    worker = workers.start(LIMITED, pool=pool, concurrency=1)
    task = getattr(workers.app(LIMITED), name)
    backend.kill()
    sent = send(workers, task, *args)
    worker.wait_for_log("waits here")
    backend.restart()
    until(lambda: task.AsyncResult(sent.id).state == "FAILURE")
    wait_acknowledged(workers)
    assert counts(journal) == {"a": 1}


@pytest.mark.parametrize(("name", "resumed"), [("hold", True), ("hold", False), ("plain", False)])
def test_run_of_a_solo_worker_is_not_repeated(
    backend: EmbeddedServer, workers: Workers, journal: Journal, state: State, name: str, *, resumed: bool
) -> None:
    """Its body runs in the call that gives it to the pool."""
    worker = workers.start(DOORS, pool="solo", concurrency=1)
    app = workers.app(DOORS)
    limit = state.limit(app.hold.name)
    journal.let_all_go()
    if resumed:
        limit.pause()
        state.wait_parked(send(workers, app.hold, "a"))
    backend.kill()
    if resumed:
        limit.resume()
    else:
        send(workers, getattr(app, name), "a")
    journal.wait_finished(1, "a")
    worker.wait_for_log("ended without an outcome" if name == "plain" else "its outcome is kept here")
    send(workers, app.plain, "after", ignore_result=True)
    journal.wait_finished(1, "after")
    backend.restart()
    wait_acknowledged(workers)
    state.wait_clean()
    assert counts(journal) == {"a": 1, "after": 1}


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_outcome_is_stored_when_the_backend_is_back(
    backend: EmbeddedServer, workers: Workers, journal: Journal, state: State, pool: str
) -> None:
    """The store alone has the messages, and each body ends once; a run that is over holds up no other."""
    worker = workers.start(DOORS, pool=pool, concurrency=1)
    app = workers.app(DOORS)
    limit = state.limit(app.hold_late.name)
    limit.pause()
    parked = [app.hold_late.delay(label) for label in ("first", "second")]
    state.wait_parked(*parked)
    backend.kill()
    journal.let_all_go()
    limit.resume()

    journal.wait_finished(2)
    state.wait_clean()
    worker.wait_for_log("its outcome is kept here", times=2)
    backend.restart()

    assert [each.get(timeout=HANGS_AFTER) for each in parked] == ["first", "second"]
    assert counts(journal) == {"first": 1, "second": 1}


@pytest.mark.parametrize("pool", ["threads", "prefork"])
@pytest.mark.parametrize("name", ["hold", "hold_late"])
def test_worker_ends_before_it_can_store_an_outcome(
    backend: EmbeddedServer, workers: Workers, journal: Journal, state: State, name: str, pool: str
) -> None:
    """A task that is acknowledged late runs again; the outcome of any other is lost, with a line in the log."""
    worker = workers.start(DOORS, pool=pool, concurrency=1)
    app = workers.app(DOORS)
    sent = send(workers, getattr(app, name), "a")
    journal.wait_running(1, "a")
    backend.kill()
    journal.let_all_go()
    worker.wait_for_log("its outcome is kept here")
    worker.term()
    assert worker.wait() == 0
    again = "runs again, because this process ends before the result backend is back"
    ends = "its outcome is lost: the process has ended" if name == "hold" else again
    assert f"[{sent.id}] has ended, and {ends}" in worker.log()

    backend.restart()
    redeliver(workers)
    app = workers.start_app(DOORS)
    if name == "hold_late":
        assert app.app.AsyncResult(sent.id).get(timeout=HANGS_AFTER) == "a"
    app.hold_late.delay("next").get(timeout=HANGS_AFTER)
    state.wait_clean()
    assert counts(journal) == {"a": 1 if name == "hold" else 2, "next": 1}


def test_a_late_task_whose_time_is_over_comes_again_on_greenlets(
    backend: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    lost = workers.start(DOORS, pool="gevent", concurrency=2)
    app = workers.app(DOORS)
    task = send(workers, app.hold_late, "a", time_limit=2)
    journal.wait_running(1, "a")
    backend.kill()
    lost.wait_for_log("Hard time limit")
    until(lambda: not state.holders)
    assert unacknowledged(workers)
    lost.kill()
    journal.let_all_go()
    backend.restart()
    redeliver(workers)
    workers.start(DOORS, pool="gevent", concurrency=2)
    assert app.hold_late.AsyncResult(task.id).get(timeout=HANGS_AFTER) == "a"


def test_unreported_result_is_retried_once_a_second(
    backend: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    """It would get its grant again at once."""
    workers.conf["result_backend_transport_options"] = {"retry_policy": {"max_retries": 0}}
    worker = workers.start(ONCE, concurrency=2)
    app = workers.app(ONCE)
    send(workers, app.hold_raise, "a")
    journal.wait_running(1)
    backend.kill()
    began = time.monotonic()
    duplicate = send(workers, app.hold_raise, "a")
    worker.wait_for_log("back to its place", times=3)
    assert time.monotonic() - began > 1.9
    backend.restart()
    until(lambda: app.hold_raise.AsyncResult(duplicate.id).state == "FAILURE")
    journal.let_go("a")
    state.wait_clean()


def is_done(task: Any) -> bool:
    lock = task.locked_by("a")
    return lock is not None and lock.state == "done"


@pytest.mark.parametrize("name", ["hold_remembered_early", "hold_remembered"])
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_lost_result_is_remembered_and_duplicates_get_it(
    backend: EmbeddedServer, workers: Workers, journal: Journal, pool: str, name: str
) -> None:
    worker = workers.start(ONCE, pool=pool, concurrency=2)
    task = getattr(workers.app(ONCE), name)
    first = send(workers, task, "a")
    journal.wait_running(1, "a")
    backend.kill()
    journal.let_go("a")

    until(lambda: is_done(task))
    worker.wait_for_log(f"{first.id}. has succeeded, but its result is lost")
    wait_acknowledged(workers)
    backend.restart()

    for duplicate in (task.delay("a"), task.AsyncResult(send(workers, task, "a").id)):  # found here, and by a worker
        with pytest.raises(ResultLost, match=f"as {first.id}, but its result is lost"):
            duplicate.get(timeout=HANGS_AFTER)
    assert counts(journal) == {"a": 1}


def test_it_succeeds_also_if_the_store_is_away_as_well(
    store: EmbeddedServer, backend: EmbeddedServer, workers: Workers, journal: Journal
) -> None:
    """The process that ran it cannot report that: its worker does, when the store is back."""
    worker = workers.start(ONCE, concurrency=1)
    task = workers.app(ONCE).hold_remembered
    send(workers, task, "a")
    journal.wait_running(1, "a")
    store.kill()
    backend.kill()
    journal.let_go("a")
    worker.wait_for_log("cannot report at once")
    store.restart()
    backend.restart()

    until(lambda: is_done(task))
    wait_acknowledged(workers)
    send(workers, task, "a")
    wait_acknowledged(workers)
    assert counts(journal) == {"a": 1}


def test_one_that_is_not_remembered_fails_as_without_us(
    backend: EmbeddedServer, workers: Workers, journal: Journal
) -> None:
    worker = workers.start(ONCE, concurrency=1)
    task = workers.app(ONCE).hold
    first = send(workers, task, "a")
    journal.wait_running(1, "a")
    backend.kill()
    journal.let_go("a")
    worker.wait_for_log("ended without an outcome|Task handler raised error|ConnectionError")
    until(lambda: task.locked_by("a") is None)
    assert f"{first.id}] has succeeded" not in worker.log()


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_parked_task_is_throttled_until_it_ends(workers: Workers, journal: Journal, state: State, pool: str) -> None:
    for _ in range(2 if pool == "solo" else 1):
        workers.start(SHOWN, pool=pool, concurrency=2)
    app = workers.app(DOORS)
    journal.wait_begun(app.hold.delay("first"))
    parked = app.hold.delay("parked")
    state.wait_parked(parked)

    until(lambda: parked.state == "THROTTLED")
    assert (parked.ready(), parked.info) == (False, {"limits": [app.hold.name]})
    with pytest.raises(exceptions.TimeoutError):
        parked.get(timeout=0.3)

    journal.let_all_go()
    assert parked.get(timeout=HANGS_AFTER) == "parked"
    assert parked.state == "SUCCESS"


def test_late_write_of_a_state_leaves_the_outcome_alone(workers: Workers, journal: Journal, state: State) -> None:
    """Another worker runs the task before the worker that parked it reaches the backend."""
    direct, port = workers.backend, int(workers.backend.rpartition(":")[2].partition("/")[0])
    with Relay(port) as relay:
        workers.backend = f"{relay.url.removesuffix('/0')}/{direct.rpartition('/')[2]}"
        workers.start(SHOWN, queues="left", concurrency=1)
        workers.backend = direct
        workers.start(DOORS, queues="right")
        app = workers.app(DOORS)
        journal.wait_begun(app.right.delay("first"))
        relay.hold_replies()
        parked = app.left.delay("parked")
        state.wait_parked(parked)
        app.plain.apply_async(["busy"], queue="left", ignore_result=True)  # so it cannot start where it was parked
        journal.wait_running(1, "busy")
        other = workers.start(DOORS, queues="left")
        journal.let_go("first", "parked")
        assert parked.get(timeout=HANGS_AFTER) == "parked"
        other.term()
        other.wait()  # the first worker gets the next task of this queue

        journal.wait_begun(app.right.delay("second"))
        last = app.left.delay("last")
        state.wait_parked(last)
        relay.pass_replies()
        until(lambda: last.state == "THROTTLED")  # written after the other one
        with Redis.from_url(direct) as client:
            assert b'"SUCCESS"' in client.get(f"celery-task-meta-{parked.id}")
        journal.let_all_go()
        assert last.get(timeout=HANGS_AFTER) == "last"
        left, right, _ = workers.started
        for worker in (left, right):
            worker.term()
        for worker in (left, right):
            worker.wait()


def test_backend_that_hangs_holds_up_no_task(
    backend: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    """Nor does a state that it cannot get."""
    workers.start(SHOWN, concurrency=2)
    app = workers.app(DOORS)
    journal.wait_begun(app.hold.apply_async(["first"], ignore_result=True))
    backend.freeze()
    # A publisher of a task with a result would have to reach the backend, too.
    options: dict[str, Any] = {"ignore_result": True, "headers": {"ignore_result": False}}
    parked = [app.app.send_task(app.hold.name, [f"t{number}"], **options) for number in range(5)]
    state.wait_parked(*parked)
    journal.wait_begun(app.plain.apply_async(["plain"], ignore_result=True))
    backend.thaw()
    with Redis.from_url(backend.url) as client:
        until(lambda: all(client.exists(f"celery-task-meta-{each.id}") for each in parked))
    journal.let_all_go()
    journal.wait_finished(7)
    state.wait_clean()
