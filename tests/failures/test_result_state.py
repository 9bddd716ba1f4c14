"""The state of a parked task, by the receiver in docs/reference/signals.md: never written over another state."""

from __future__ import annotations

from typing import Any

import pytest
from celery import exceptions
from redis import Redis

from celery_throttle.embedded import EmbeddedServer
from tests.failures.tools import AT_ONCE, DOORS
from tests.support.journal import Journal
from tests.support.relay import Relay
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers

SHOWN = "tests.support.apps.shown"


def is_written(workers: Workers, result: Any) -> bool:
    with Redis.from_url(workers.backend) as client:
        return bool(client.exists(f"celery-task-meta-{result.id}"))


def park(app: Any, journal: Journal, state: State, **options: Any) -> Any:
    """Return the result of a task that waits behind ``first``."""
    journal.wait_begun(app.hold.delay("first"))
    parked = app.hold.apply_async(["parked"], **options)
    state.wait_parked(parked)
    return parked


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_parked_task_is_throttled_until_it_ends(workers: Workers, journal: Journal, state: State, pool: str) -> None:
    if pool == "solo":
        workers.start(SHOWN, pool=pool, concurrency=1)
    workers.start(SHOWN, pool=pool, concurrency=2)
    app = workers.app(DOORS)
    parked = park(app, journal, state)

    until(lambda: parked.state == "THROTTLED")
    assert (parked.ready(), parked.info) == (False, {"limits": [app.hold.name]})
    with pytest.raises(exceptions.TimeoutError):
        parked.get(timeout=0.3)

    journal.let_all_go()
    assert parked.get(timeout=AT_ONCE) == "parked"
    assert parked.state == "SUCCESS"


def test_late_write_leaves_the_outcome_alone(workers: Workers, journal: Journal, state: State) -> None:
    """Another worker runs the task before the worker that parked it reaches the backend."""
    direct = workers.backend
    port = int(direct.rpartition(":")[2].partition("/")[0])
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
        workers.start(DOORS, queues="left")
        journal.let_go("first", "parked")
        assert parked.get(timeout=AT_ONCE) == "parked"

        journal.wait_begun(app.right.delay("second"))
        last = app.left.delay("last")
        state.wait_parked(last)
        relay.pass_replies()
        until(lambda: last.state == "THROTTLED", timeout=AT_ONCE)  # written after the other one
        with Redis.from_url(direct) as client:
            assert b'"SUCCESS"' in client.get(f"celery-task-meta-{parked.id}")
        journal.let_all_go()
        assert last.get(timeout=AT_ONCE) == "last"
        for worker in workers.started:
            worker.term()
        for worker in workers.started:
            worker.wait()


def test_backend_that_hangs_holds_up_no_task(
    backend: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    workers.start(SHOWN, concurrency=2)
    app = workers.app(DOORS)
    journal.wait_begun(app.hold.apply_async(["first"], ignore_result=True))
    backend.freeze()
    parked = [
        # A publisher of a task with a result would have to reach the backend, too.
        app.app.send_task(app.hold.name, [f"t{number}"], ignore_result=True, headers={"ignore_result": False})
        for number in range(5)
    ]
    state.wait_parked(*parked, timeout=AT_ONCE)
    journal.wait_begun(app.plain.apply_async(["plain"], ignore_result=True))
    backend.thaw()
    until(lambda: all(is_written(workers, each) for each in parked), timeout=AT_ONCE)
    journal.let_all_go()
    journal.wait_finished(7, timeout=AT_ONCE)
    state.wait_clean()
