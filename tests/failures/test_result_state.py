"""The state THROTTLED of parked tasks: there while they wait, never over what became of them."""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from celery import chord, exceptions, group
from redis import Redis

from tests.conftest import new_server
from tests.failures.tools import AT_ONCE, DOORS, LONG_LEASE, counts, redeliver
from tests.support.relay import Relay
from tests.support.waiting import until
from tests.support.workers import BASIC

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.embedded import EmbeddedServer
    from tests.failures.tools import Doors
    from tests.support.journal import Journal
    from tests.support.state import State
    from tests.support.workers import Workers

pytestmark = pytest.mark.worker

#: Celery tries for 20 s otherwise.
QUICK_BACKEND = {"retry_policy": {"max_retries": 1, "interval_start": 0.1, "interval_max": 0.1}}


@pytest.fixture(autouse=True)
def asked_for(workers: Workers) -> None:
    workers.conf |= {"throttle_result_state": True, "throttle_lease": LONG_LEASE}


def written(workers: Workers, *results: Any) -> list[str | None]:
    """The states that the backend has, as it has them; None: nothing."""
    with Redis.from_url(workers.backend) as client:
        found: Any = client.mget([f"celery-task-meta-{each.id}" for each in results])
    return [json.loads(each)["status"] if each else None for each in found]


def park(app: Any, journal: Journal, state: State, **options: Any) -> Any:
    """Return the result of a task that waits behind ``first``."""
    app.hold.delay("first")
    journal.wait_running(1, "first")
    parked = app.hold.apply_async(["parked"], **options)
    state.wait_parked(parked)
    return parked


@contextmanager
def noted(url: str) -> Iterator[dict[str, list[str]]]:
    """Note all states that are written, by task."""
    states: dict[str, list[str]] = {}

    def note(message: dict[str, Any]) -> None:
        meta = json.loads(message["data"])
        states.setdefault(meta["task_id"], []).append(meta["status"])

    with Redis.from_url(url) as client, client.pubsub(ignore_subscribe_messages=True) as channel:
        channel.psubscribe(**{"celery-task-meta-*": note})
        thread = channel.run_in_thread(sleep_time=0.01, daemon=True)
        try:
            yield states
        finally:
            thread.stop()
            thread.join()


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_it_is_there_while_a_task_waits(
    workers: Workers, journal: Journal, doors: Doors, state: State, pool: str
) -> None:
    if pool == "solo":
        workers.start(DOORS, pool=pool, concurrency=1)
    workers.start(DOORS, pool=pool, concurrency=2)
    app = workers.app(DOORS)
    since = datetime.now(timezone.utc)
    first = app.hold.delay("first")
    journal.wait_running(1, "first")
    parked = app.hold.delay("parked")
    state.wait_parked(parked)

    assert (parked.state, parked.ready(), first.state) == ("THROTTLED", False, "PENDING")
    assert parked.info["limits"] == [app.hold.name]
    assert since <= datetime.fromisoformat(parked.info["since"]) <= datetime.now(timezone.utc)
    with pytest.raises(exceptions.TimeoutError):
        parked.get(timeout=0.3)

    doors.open_all()
    assert parked.get(timeout=AT_ONCE) == "parked"
    assert parked.state == "SUCCESS"


def test_nothing_is_written_unless_it_is_asked_for(
    workers: Workers, journal: Journal, doors: Doors, state: State
) -> None:
    workers.conf["throttle_result_state"] = False
    workers.start(DOORS)
    app = workers.app(DOORS)
    parked = park(app, journal, state)
    assert written(workers, parked) == [None]
    doors.open_all()
    parked.get(timeout=AT_ONCE)


def test_a_task_without_a_result_has_none(workers: Workers, journal: Journal, doors: Doors, state: State) -> None:
    workers.start(DOORS)
    app = workers.app(DOORS)
    parked = park(app, journal, state, ignore_result=True)
    assert written(workers, parked) == [None]
    doors.open_all()
    journal.wait_finished(2, timeout=AT_ONCE)
    assert written(workers, parked) == [None]


def test_revoked_while_it_waits(workers: Workers, journal: Journal, doors: Doors, state: State) -> None:
    workers.start(DOORS)
    app = workers.app(DOORS)
    parked = park(app, journal, state)
    until(lambda: parked.state == "THROTTLED")
    parked.revoke()
    with pytest.raises(exceptions.TaskRevokedError):
        parked.get(timeout=AT_ONCE)
    workers.wait_discarded(parked)
    assert parked.state == "REVOKED"
    doors.open_all()
    journal.wait_finished(1)


def test_retries_groups_and_chords_end_as_ever(workers: Workers, state: State) -> None:
    workers.start_many(2, BASIC, concurrency=2)
    app = workers.app(BASIC)
    labels = [f"t{number}" for number in range(20)]
    retried = [app.retry.delay(label) for label in labels]
    many = group(app.one.s(label) for label in labels).apply_async()
    ended = chord((app.one.s(label) for label in labels), app.collect.s()).apply_async()
    assert ended.get(timeout=60) == sorted(labels)
    assert many.get(timeout=60) == labels
    assert [each.get(timeout=60) for each in retried] == labels
    state.wait_clean()


def test_one_that_others_start_at_once_never_ends_with_it(workers: Workers, state: State) -> None:
    """The backend's answers are late, so whatever is written after a task is parked would come after its end."""
    port = int(workers.backend.rpartition(":")[2].partition("/")[0])
    direct = workers.backend
    with Relay(port) as relay, noted(direct) as states:
        relay.delay = 0.02
        workers.backend = relay.url.removesuffix("/0") + "/1"
        slow = workers.start(BASIC, concurrency=2)
        workers.backend = direct
        quick = workers.start(BASIC, concurrency=4)
        app = workers.app(BASIC)
        results = []
        for number in range(75):
            results += [app.work.delay(f"work {number}"), app.fail.delay(f"fail {number}")]
        until(lambda: all(each.ready() for each in results), timeout=60)
        state.wait_clean()
        slow.term()
        quick.term()
        slow.wait()
        quick.wait()
        assert {each.state for each in results[::2]} == {"SUCCESS"}
        assert {each.state for each in results[1::2]} == {"FAILURE"}
        told = [states[each.id] for each in results]
        assert sum("THROTTLED" in each for each in told) > 25
        assert {each[-1] for each in told} == {"SUCCESS", "FAILURE"}


def test_a_second_delivery_leaves_the_state_alone(
    workers: Workers, journal: Journal, doors: Doors, state: State
) -> None:
    """It is parked, but whoever has the first one runs it."""
    workers.conf["task_track_started"] = True
    workers.start(DOORS, concurrency=2)
    workers.start(DOORS, concurrency=2)
    app = workers.app(DOORS)
    first = app.hold_late.delay("first")
    journal.wait_running(1, "first")
    redeliver(workers)
    until(lambda: state.has_second(first), timeout=AT_ONCE)
    assert first.state == "STARTED"
    doors.open_all()
    first.get(timeout=AT_ONCE)
    state.wait_clean()
    assert counts(journal) == {"first": 1}


@pytest.fixture
def backend(workers: Workers) -> Iterator[EmbeddedServer]:
    with new_server() as running:
        workers.backend = running.url
        workers.conf["result_backend_transport_options"] = QUICK_BACKEND
        yield running


def publish(app: Any, count: int) -> list[Any]:
    """Publish tasks that have results, without the backend: whoever publishes would have to reach it, too."""
    found = [app.hold.AsyncResult(f"t{number}") for number in range(count)]
    for each in found:
        told = {"ignore_result": False}
        app.app.send_task(app.hold.name, [each.id], task_id=each.id, ignore_result=True, headers=told)
    return found


def test_a_backend_that_is_away_costs_a_line_in_the_log(
    backend: EmbeddedServer, workers: Workers, journal: Journal, doors: Doors, state: State
) -> None:
    worker = workers.start(DOORS, concurrency=2)
    app = workers.app(DOORS)
    app.hold.apply_async(["first"], ignore_result=True)
    journal.wait_running(1, "first")
    backend.kill()
    parked = publish(app, 5)
    state.wait_parked(*parked, timeout=AT_ONCE)
    worker.wait_for_log("cannot write the state of")
    assert len(worker.wait_for_log("cannot write the state of")) == 1
    backend.restart()
    doors.open_all()
    assert [each.get(timeout=AT_ONCE) for each in parked] == [each.id for each in parked]
    state.wait_clean()


def test_a_backend_that_hangs_keeps_no_other_task_from_its_line(
    backend: EmbeddedServer, workers: Workers, journal: Journal, doors: Doors, state: State
) -> None:
    workers.start(DOORS, concurrency=2)
    app = workers.app(DOORS)
    app.hold.apply_async(["first"], ignore_result=True)
    journal.wait_running(1, "first")
    backend.freeze()
    results = publish(app, 5)
    until(lambda: len(state.parked) >= 4, timeout=AT_ONCE)
    app.plain.apply_async(["plain"], ignore_result=True)
    journal.wait_running(1, "plain", timeout=AT_ONCE)
    backend.thaw()
    state.wait_parked(*results, timeout=AT_ONCE)
    doors.open_all()
    journal.wait_finished(7, timeout=AT_ONCE)
    assert {each.get(timeout=AT_ONCE) for each in results} == {each.id for each in results}
    state.wait_clean()
