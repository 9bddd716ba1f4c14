"""A message at the broker and in the store, or with two deliveries: it runs as often as its acks have it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from redis import Redis

from celery_throttle.embedded import EmbeddedServer
from tests.conftest import new_server
from tests.failures.tools import (
    AT_ONCE,
    SEAMS,
    SHORT_LEASE,
    WITHIN_LEASE,
    counts,
    redeliver,
    unacknowledged,
)
from tests.support.journal import Journal
from tests.support.relay import Relay
from tests.support.state import State
from tests.support.waiting import always, until
from tests.support.workers import Workers

#: A worker reports that it stops a moment before it does, and no state shows that; a reply may take a second.
CLOSED_AFTER = 0.4


def test_parked_while_its_worker_is_stopped(relay: Relay, workers: Workers, journal: Journal, state: State) -> None:
    stopping = workers.start(SEAMS, concurrency=3, conf={"throttle_url": relay.url})
    app = workers.app(SEAMS)
    app.plain.delay("longest")
    app.one.delay("first")
    journal.wait_running(2)
    state.wait_parked(app.one.delay("parked"))  # from now on it treats the limit as full
    until(lambda: relay.quiet_for(0.2))
    relay.hold_replies()
    state.wait_parked(app.one.delay("last"))

    stopping.term()
    stopping.wait_for_log("Warm shutdown")
    time.sleep(CLOSED_AFTER)
    relay.pass_replies()
    workers.start(SEAMS, concurrency=2)
    journal.let_go("first", "parked", "last")
    journal.wait_finished(3, task=".one", timeout=AT_ONCE)
    journal.let_all_go()
    assert stopping.wait() == 0

    until(lambda: not unacknowledged(workers), timeout=AT_ONCE)
    app.plain.delay("after them").get(timeout=AT_ONCE)
    state.wait_clean()
    assert set(counts(journal).values()) == {1}, counts(journal)


def test_granted_to_a_worker_frozen_for_longer_than_its_lease(
    relay: Relay, workers: Workers, journal: Journal, state: State
) -> None:
    """It reads of its grant when another worker runs the task."""
    workers.conf["throttle_lease"] = SHORT_LEASE
    workers.start(SEAMS, concurrency=1, queues="alpha")
    frozen = workers.start(SEAMS, concurrency=1, conf={"throttle_url": relay.url})
    app = workers.app(SEAMS)
    journal.wait_begun(app.one.apply_async(["first"], queue="alpha"))
    second = app.one.delay("second")
    state.wait_parked(second)
    until(lambda: relay.quiet_for(0.2))
    relay.hold_replies()
    journal.let_go("first")
    until(lambda: second.id in state.holders, timeout=AT_ONCE, every=0.005)
    frozen.freeze()
    relay.pass_replies()
    workers.start(SEAMS, concurrency=1)
    journal.wait_running(1, "second", timeout=WITHIN_LEASE)

    frozen.thaw()

    always(lambda: len(journal.runs("second")) == 1, seconds=1.5)
    journal.let_all_go()
    state.wait_clean()
    assert counts(journal) == {"first": 1, "second": 1}


def test_permits_survive_a_store_without_some_scripts(
    redis: Redis, workers: Workers, journal: Journal, state: State
) -> None:
    before = workers.start(SEAMS, concurrency=1, queues="alpha")
    app = workers.app(SEAMS)
    pair = state.limit("tests.support.apps.seams.pair")
    pair.pause()
    state.wait_parked(*(app.pair.apply_async([str(number)], queue="alpha") for number in range(6)))
    before.term()
    before.wait()
    workers.start(SEAMS, concurrency=1, env={"LOOK_EVERY": "0.2"})
    pair.resume()

    redis.script_flush()
    until(lambda: int(redis.info("memory")["number_of_cached_scripts"]) > 0, timeout=AT_ONCE)  # reloaded in part
    workers.start(SEAMS, concurrency=4, queues="alpha")
    journal.wait_running(2, task=".pair", timeout=AT_ONCE)
    always(lambda: len(journal.running()) <= 2, seconds=1)
    journal.let_all_go()

    journal.wait_finished(6, timeout=AT_ONCE)
    state.wait_clean()
    assert set(counts(journal).values()) == {1}
    assert journal.max_running() <= 2


@pytest.mark.parametrize("own_server", [{"persistent": True}], indirect=True)
def test_identity_of_a_grant_after_a_lost_broker_connection(
    own_server: EmbeddedServer, workers: Workers, journal: Journal
) -> None:
    with new_server() as store, Relay(store.port) as relay:
        workers.conf.update(throttle_url=store.url)
        worker = workers.start(SEAMS, concurrency=2, conf={"throttle_url": relay.url})
        app = workers.app(SEAMS)
        journal.let_go("before")
        app.once.delay("before").get(timeout=AT_ONCE)  # so that the store has the scripts
        until(lambda: app.once.locked_by("before") is None and relay.quiet_for(0.3))
        relay.hold_replies()
        first = app.once.delay("a").id  # no result outlives its backend here

        def asked() -> bool:
            locked: Any = app.once.locked_by("a")
            return bool(locked.state == "running")

        until(asked, timeout=AT_ONCE)
        own_server.kill()
        worker.wait_for_log("Connection to broker lost|Cannot connect to")
        relay.pass_replies()

        # The broker has the message, and will deliver it again.
        always(lambda: app.once.locked_by("a") is not None, seconds=1.5)
        assert app.once.locked_by("a").task_id == first
        own_server.restart()
        until(lambda: not worker.running or worker.log().count("Connected to") == 2, timeout=AT_ONCE)
        if not worker.running:  # kombu 5.7 cannot put unacknowledged messages back while the broker is down
            workers.start(SEAMS, concurrency=2)
        redeliver(workers)
        journal.let_all_go()
        journal.wait_finished(1, "a", timeout=AT_ONCE)
        until(lambda: app.once.locked_by("a") is None, timeout=AT_ONCE)
        assert counts(journal)["a"] == 1
