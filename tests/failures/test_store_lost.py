"""The store is killed, frozen, restarted empty or nagged: nothing is lost, the cap holds, plain tasks go on."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from celery import Celery
from celery.result import AsyncResult
from redis import Redis

from celery_throttle import StoreUnavailable, ThrottleControl
from celery_throttle.core.keys import Keys
from celery_throttle.embedded import EmbeddedServer
from tests.failures.tools import (
    AT_ONCE,
    DOORS,
    SHORT_LEASE,
    WITHIN_LEASE,
    counts,
    most_at_once,
)
from tests.support.journal import Journal
from tests.support.relay import Relay
from tests.support.remote import throttle_in
from tests.support.state import State
from tests.support.waiting import always, until
from tests.support.workers import Workers

EMPTY = pytest.mark.parametrize("store", [{"persistent": False}], indirect=True)


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_hold(store: EmbeddedServer, workers: Workers, journal: Journal, state: State, how: str) -> None:
    worker = workers.start(DOORS, concurrency=2)
    app = workers.app(DOORS)
    journal.wait_begun(app.hold.delay("first"))
    state.wait_parked(*(app.hold.delay(f"parked {number}") for number in range(3)))
    journal.let_go(*(f"plain {number}" for number in range(20)))

    store.kill() if how == "killed" else store.freeze()
    for number in range(10):
        app.hold.delay(f"held {number}")
        app.plain.delay(f"plain {number}")
    # More than the prefetch count allows: held messages must not count.
    journal.wait_finished(10, task="plain", timeout=AT_ONCE)
    worker.wait_for_log("cannot reach the store")
    journal.let_go("first")  # its permit is given back when that is possible again
    journal.wait_finished(1, "first")
    for number in range(10, 20):
        app.plain.delay(f"plain {number}")
    journal.wait_finished(20, task="plain", timeout=AT_ONCE)
    assert counts(journal)["first"] == 1
    assert len(journal.runs(task=".hold")) == 1
    journal.let_all_go()
    store.restart() if how == "killed" else store.thaw()

    journal.wait_finished(1 + 3 + 10, task=".hold", timeout=AT_ONCE)
    state.wait_clean()
    assert set(counts(journal).values()) == {1}
    assert most_at_once(journal, ".hold") == 1
    assert journal.order(task=".hold")[:4] == ["first", "parked 0", "parked 1", "parked 2"]


def test_worker_starts_without_the_store(
    store: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    store.kill()
    journal.let_all_go()
    worker = workers.start(DOORS, concurrency=2)
    app = workers.app(DOORS)

    held = app.hold.delay("held")
    app.plain.delay("plain").get(timeout=AT_ONCE)
    worker.wait_for_log("cannot reach the store")
    assert counts(journal) == {"plain": 1}
    store.restart()

    assert held.get(timeout=AT_ONCE) == "held"
    state.wait_clean()


def test_errors_are_counted(store: EmbeddedServer, workers: Workers, journal: Journal) -> None:
    """Once for each worker that sees it: not for each attempt to connect, nor for each task that waits."""
    store.kill()
    journal.let_all_go()
    late = workers.start(DOORS, concurrency=2)
    app = workers.app(DOORS)
    control = ThrottleControl(app.app)

    def told() -> int:
        (found,) = re.findall(r'celery_throttle_store_errors_total\{group=""\} (\d+)', control.metrics())
        return int(found)

    held = [app.hold.delay(f"held {number}") for number in range(5)]
    late.wait_for_log("cannot reach the store")
    store.restart()
    for each in held:
        each.get(timeout=AT_ONCE)
    assert until(told) == 1

    workers.start(DOORS, concurrency=2)
    app.hold.delay("both are there").get(timeout=AT_ONCE)
    store.kill()
    held = [app.hold.delay(f"held again {number}") for number in range(5)]
    late.wait_for_log("cannot reach the store", times=2)
    store.restart()
    for each in held:
        each.get(timeout=AT_ONCE)
    until(lambda: told() == 3)


def test_run(store: EmbeddedServer, workers: Workers, journal: Journal, state: State) -> None:
    workers.conf.update(throttle_on_store_error="run")
    worker = workers.start(DOORS, concurrency=3)
    app = workers.app(DOORS)
    journal.wait_begun(app.hold.delay("first"))
    parked = app.hold.delay("parked")
    state.wait_parked(parked)

    store.kill()
    second, third = app.hold.delay("second"), app.hold.delay("third")

    journal.wait_running(3, timeout=AT_ONCE)
    for result in (second, third):
        worker.wait_for_log(rf"hold\[{result.id}\] runs without a permit")
    shown = throttle_in(app.app, worker)["unthrottled"]["tasks"]
    need = {"limit": app.hold.name, "key": None, "permits": 1}
    assert {(each["task_id"], each["queue"]) for each in shown} == {(second.id, "celery"), (third.id, "celery")}
    assert [each["needs"] for each in shown] == [[need]] * 2
    journal.let_all_go()
    journal.wait_finished(3)
    store.restart()
    journal.wait_finished(1, "parked", timeout=AT_ONCE)
    assert set(counts(journal).values()) == {1}
    state.wait_clean()


def test_fail(store: EmbeddedServer, workers: Workers, journal: Journal, state: State) -> None:
    workers.conf.update(throttle_on_store_error="fail")
    app = workers.start_app(DOORS, concurrency=2)
    journal.wait_begun(app.hold.delay("first"))
    state.wait_parked(app.hold.delay("parked"))

    store.kill()
    for task in (app.hold, app.hold_late):
        failed: AsyncResult[str] = task.delay("failed")
        with pytest.raises(StoreUnavailable, match="throttle_on_store_error"):
            failed.get(timeout=AT_ONCE)
    store.restart()
    journal.let_all_go()

    # Running and parked tasks do not fail.
    journal.wait_finished(2, timeout=AT_ONCE)
    assert counts(journal) == {"first": 1, "parked": 1}
    state.wait_clean()


@EMPTY
def test_running_holders_put_themselves_back_after_a_restart(
    store: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    workers.conf["throttle_lease"] = 3
    started = workers.start_many(2, DOORS, concurrency=2)
    app = workers.app(DOORS)
    first, late = app.hold.delay("first"), app.hold_late.delay("late")
    journal.wait_running(2)

    store.kill()
    store.restart()
    until(lambda: state.holders == {first.id, late.id}, timeout=AT_ONCE)
    state.wait_parked(app.hold.delay("next"), app.hold_late.delay("late next"))
    until(lambda: sum(worker.log().count("put back") for worker in started) == 2)
    journal.let_all_go()

    journal.wait_finished(4, timeout=AT_ONCE)
    state.wait_clean()
    assert set(counts(journal).values()) == {1}
    assert {most_at_once(journal, task) for task in (".hold", ".hold_late")} == {1}


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_store_with_its_data_back_after_longer_than_a_lease(
    store: EmbeddedServer, workers: Workers, journal: Journal, state: State, how: str
) -> None:
    """No worker could renew: the first one that is back must not take the others for lost."""
    workers.conf["throttle_lease"] = SHORT_LEASE
    with Relay(store.port) as relay, Redis.from_url(store.url) as client:
        runs = workers.start(DOORS, concurrency=1, queues="runs", conf={"throttle_url": relay.url})
        looks = workers.start(DOORS, concurrency=2)
        app = workers.app(DOORS)
        first = journal.wait_begun(app.hold.apply_async(["first"], queue="runs"))
        second = app.hold.delay("second")
        state.wait_parked(second)

        relay.refuse()
        store.kill() if how == "killed" else store.freeze()
        away_since = time.monotonic()
        until(lambda: time.monotonic() > away_since + 1.5 * SHORT_LEASE, timeout=AT_ONCE)
        store.restart() if how == "killed" else store.thaw()
        until(lambda: client.pubsub_numsub(Keys("throttle").wake)[0][1] == 1, timeout=AT_ONCE)
        looks.wait_for_log("lost the store")
        relay.accept()

        always(lambda: not journal.runs("second"), seconds=3)
        assert "lease_lost" not in runs.log()
        journal.let_all_go()
        assert [each.get(timeout=AT_ONCE) for each in (first, second)] == ["first", "second"]
        assert most_at_once(journal, ".hold") == 1
        state.wait_clean()


@EMPTY
def test_each_worker_puts_back_its_holders_after_a_flush(
    store: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    """No connection broke, and the first call comes from a worker without holders."""
    app = workers.start_app(DOORS, concurrency=1, queues="runs")
    first = journal.wait_begun(app.hold.apply_async(["first"], queue="runs"))

    with Redis.from_url(store.url) as client:
        client.flushall()
    workers.start(DOORS, concurrency=2)
    until(lambda: state.holders == {first.id}, timeout=AT_ONCE)
    state.wait_parked(app.hold.delay("second"))
    journal.let_all_go()
    journal.wait_finished(2, timeout=AT_ONCE)
    state.wait_clean()
    assert most_at_once(journal, ".hold") == 1


def test_lease_lost(redis: Redis, workers: Workers, journal: Journal, state: State) -> None:
    """A worker stands still past its lease, another one takes over, the first one comes back and finishes."""
    workers.conf["throttle_lease"] = SHORT_LEASE
    frozen = workers.start(DOORS, concurrency=1, queues="first")
    other = workers.start(DOORS, concurrency=2)
    app = workers.app(DOORS)
    first: Any = app.hold.apply_async(["first"], queue="first")
    journal.wait_running(1, "first")
    second, third = app.hold.delay("second"), app.hold.delay("third")
    state.wait_parked(second, third)

    frozen.freeze()
    journal.wait_running(1, "second", timeout=WITHIN_LEASE)
    frozen.thaw()
    frozen.wait_for_log(rf"lease_lost: task tests\.support\.apps\.doors\.hold\[{first.id}\]")
    assert "lease_lost" not in other.log()
    (held,) = throttle_in(app.app, frozen)["held"]["tasks"]
    assert (held["task_id"], held["lease_lost"], held["runs"]) == (first.id, True, True)
    journal.let_go("first")
    assert first.get(timeout=AT_ONCE) == "first"

    # A late end gives back nothing: the permit is another's now. The worker's next task comes after its release.
    journal.let_go("plain")
    app.plain.apply_async(["plain"], queue="first").get(timeout=AT_ONCE)
    assert (sum(state.used.values()), state.holders, state.parked) == (1, {second.id}, [third.id])
    assert not journal.runs("third")
    journal.let_all_go()
    journal.wait_finished(1, "third", timeout=AT_ONCE)
    state.wait_clean()
    assert redis.exists("unacked") == 0


@pytest.mark.parametrize("action", ["run", "fail"])
def test_a_task_that_is_being_parked_waits_for_the_answer(
    relay: Relay, workers: Workers, journal: Journal, state: State, action: str
) -> None:
    """The store may have it."""
    workers.conf.update(throttle_on_store_error=action, throttle_url=relay.url)
    worker = workers.start(DOORS, concurrency=3)
    app = workers.app(DOORS)
    client = Celery(broker=workers.broker, backend=workers.backend, set_as_current=False)
    journal.wait_begun(app.hold.delay("first"))
    state.wait_parked(app.hold.delay("second"))

    relay.hold_replies()
    third = client.send_task(app.hold.name, ("third",))
    worker.wait_for_log("cannot reach the store", timeout=AT_ONCE)
    fourth = client.send_task(app.hold.name, ("fourth",))
    if action == "run":
        journal.wait_running(1, "fourth")
    else:
        until(lambda: fourth.state == "FAILURE", timeout=AT_ONCE)
    assert not journal.runs("third")
    assert third.state == "PENDING"

    relay.pass_replies()
    worker.wait_for_log("the store is back", timeout=AT_ONCE)
    journal.let_all_go()
    assert third.get(timeout=AT_ONCE) == "third"
    state.wait_clean()
    assert set(counts(journal).values()) == {1}
