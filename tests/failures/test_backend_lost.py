"""The result backend is away when a body ends, or when a task is due the report that it does not run."""

from __future__ import annotations

import time
from typing import Any

import pytest
from celery import Celery

from celery_throttle.embedded import EmbeddedServer
from tests.failures.tools import (
    AT_ONCE,
    DOORS,
    counts,
    give_up_soon,
    redeliver,
    unacknowledged,
)
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers

LIMITED = "tests.support.apps.limited"
ONCE = "tests.support.apps.once"


def send(app: Any, *labels: str, **options: Any) -> None:
    """Publish by a client without a backend, which is away."""
    for label in labels:
        app.apply_async((label,), ignore_result=True, **options)


def expiring(app: Any, *labels: str, **options: Any) -> float:
    """Publish a task that expires in a moment, and has a result that shows it; return when it has."""
    for label in labels:
        app.apply_async((label,), expires=2, **options)
    return time.monotonic() + 2.5


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

    journal.wait_running(1, "next", timeout=AT_ONCE)
    journal.wait_begun(app.plain.apply_async(("plain again",), ignore_result=True))
    journal.let_all_go()
    journal.wait_finished(4)
    state.wait_clean()
    assert set(counts(journal).values()) == {1}


def test_task_expired_in_line_keeps_no_permit(
    backend: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    """Its turn comes, and its expiry cannot be reported: it goes back in line until the backend is there.

    Or, as Celery has noted it as revoked, it leaves its line, and the report follows as soon as it can.
    """
    worker = workers.start(DOORS, concurrency=2)
    app = workers.app(DOORS)
    send(app.hold, "first")
    journal.wait_running(1)
    late = app.hold.apply_async(("expires",), expires=2)
    expired = time.monotonic() + 2.5
    state.wait_parked(late)
    state.wait_parked(app.hold.apply_async(("next",), ignore_result=True))
    until(lambda: time.monotonic() > expired)

    backend.kill()
    journal.let_go("first")
    worker.wait_for_log("goes back to its place in line for a moment")
    assert "Traceback" not in worker.log()
    backend.restart()

    journal.wait_running(1, "next", timeout=AT_ONCE)
    journal.let_all_go()
    journal.wait_finished(2)
    state.wait_clean()
    until(lambda: late.state == "REVOKED", timeout=AT_ONCE)
    assert counts(journal) == {"first": 1, "next": 1}


def test_task_expired_before_its_slot_comes_again(backend: EmbeddedServer, workers: Workers, journal: Journal) -> None:
    """Plain tasks, as many as the worker takes at all: each is revoked once the backend is back, and it goes on."""
    worker = workers.start(DOORS, concurrency=1, conf={"worker_prefetch_multiplier": 4})
    app = workers.app(DOORS)
    send(app.plain, "first")
    journal.wait_running(1)
    expired = expiring(app.plain, *"abcd")
    until(lambda: len(unacknowledged(workers)) == 4)
    until(lambda: time.monotonic() > expired)

    backend.kill()
    journal.let_go("first")
    worker.wait_for_log("waits here: ")
    backend.restart()
    send(app.plain, "later")

    journal.wait_running(1, "later", timeout=AT_ONCE)
    journal.let_all_go()
    journal.wait_finished(2)
    until(lambda: not unacknowledged(workers), timeout=AT_ONCE)
    assert counts(journal) == {"first": 1, "later": 1}


def test_failing_while_store_and_backend_are_away(
    store: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    """One Redis has both: the failure of a task cannot be reported, and held tasks stay held."""
    workers.backend = store.url.removesuffix("/0") + "/1"
    give_up_soon(workers)
    workers.conf["throttle_on_store_error"] = "fail"
    worker = workers.start(DOORS, concurrency=2, conf={"worker_prefetch_multiplier": 8})
    app = workers.app(DOORS)
    send(app.hold, "first")
    journal.wait_running(1, "first")

    client = Celery(broker=workers.broker, set_as_current=False)
    store.kill()
    for number in range(4):
        client.send_task(app.hold.name, (f"{number}",))
    until(lambda: len(unacknowledged(workers)) == 4)
    worker.wait_for_log("cannot reach the store")
    worker.wait_for_log("waits here: ")
    store.restart()
    worker.wait_for_log("the store is back", timeout=AT_ONCE)
    journal.let_all_go()

    until(lambda: not unacknowledged(workers), timeout=AT_ONCE)  # each has failed or has run
    state.wait_clean()


@pytest.mark.parametrize(("name", "args"), [("call_without", ("a",)), ("call_about", ("a", "nope"))])
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_failed_return_fails_as_soon_as_it_can_be_reported(
    backend: EmbeddedServer, workers: Workers, journal: Journal, pool: str, name: str, args: tuple[str, ...]
) -> None:
    workers.conf["task_acks_late"] = True
    worker = workers.start(LIMITED, pool=pool, concurrency=1)
    task = getattr(workers.app(LIMITED), name)
    backend.kill()
    client = Celery(broker=workers.broker, set_as_current=False)
    sent = client.send_task(task.name, args)
    worker.wait_for_log("waits here", timeout=AT_ONCE)
    backend.restart()
    until(lambda: task.AsyncResult(sent.id).state == "FAILURE", timeout=AT_ONCE)
    until(lambda: not unacknowledged(workers), timeout=AT_ONCE)
    assert counts(journal) == {"a": 1}


@pytest.mark.parametrize(("name", "resumed"), [("hold", True), ("hold", False), ("plain", False)])
def test_run_of_a_solo_worker_is_not_repeated(
    backend: EmbeddedServer, workers: Workers, journal: Journal, state: State, name: str, *, resumed: bool
) -> None:
    """Its body runs in the call that gives it to the pool."""
    worker = workers.start(DOORS, pool="solo", concurrency=1)
    client = Celery(broker=workers.broker, set_as_current=False)
    limit = state.limit("tests.support.apps.doors.hold")
    journal.let_all_go()
    if resumed:
        limit.pause()
    else:
        backend.kill()
    result = client.send_task(f"tests.support.apps.doors.{name}", ("a",))
    if resumed:
        state.wait_parked(result)
        backend.kill()
        limit.resume()
    journal.wait_finished(1, "a")
    worker.wait_for_log("ended without an outcome")
    client.send_task("tests.support.apps.doors.plain", ("after",), ignore_result=True)
    journal.wait_finished(1, "after")
    backend.restart()
    until(lambda: not unacknowledged(workers), timeout=AT_ONCE)
    state.wait_clean()
    assert counts(journal) == {"a": 1, "after": 1}


def test_task_leaving_a_solo_worker_does_not_run_again(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(DOORS, pool="solo", concurrency=1)
    limit = state.limit("tests.support.apps.doors.hold")
    limit.pause()
    leaves = app.hold.delay("leaves", "SystemExit")
    state.wait_parked(leaves)
    journal.let_all_go()
    limit.resume()
    app.hold.delay("after").get(timeout=AT_ONCE)
    state.wait_clean()
    assert counts(journal) == {"leaves": 1, "after": 1}


def test_a_late_task_whose_time_is_over_comes_again_on_greenlets(
    backend: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    lost = workers.start(DOORS, pool="gevent", concurrency=2)
    app = workers.app(DOORS)
    client = Celery(broker=workers.broker, set_as_current=False)
    task = client.send_task(app.hold_late.name, ("a",), time_limit=2)
    journal.wait_running(1, "a")
    backend.kill()
    lost.wait_for_log("Hard time limit", timeout=AT_ONCE)
    until(lambda: not state.holders, timeout=AT_ONCE)
    assert unacknowledged(workers)
    lost.kill()
    journal.let_all_go()
    backend.restart()
    redeliver(workers)
    workers.start(DOORS, pool="gevent", concurrency=2)
    assert app.hold_late.AsyncResult(task.id).get(timeout=AT_ONCE) == "a"


def test_unreported_result_is_retried_once_a_second(
    backend: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    """It would get its grant again at once."""
    workers.conf["result_backend_transport_options"] = {"retry_policy": {"max_retries": 0}}
    worker = workers.start(ONCE, concurrency=2)
    app = workers.app(ONCE)
    client = Celery(broker=workers.broker, set_as_current=False)
    client.send_task(app.hold_raise.name, ("a",))
    journal.wait_running(1)
    backend.kill()
    began = time.monotonic()
    duplicate = client.send_task(app.hold_raise.name, ("a",))
    until(lambda: worker.log().count("back to its place") >= 3, timeout=AT_ONCE)
    assert time.monotonic() - began > 1.9
    backend.restart()
    until(lambda: app.hold_raise.AsyncResult(duplicate.id).state == "FAILURE", timeout=AT_ONCE)
    journal.let_go("a")
    state.wait_clean()
