"""The broker's connection breaks, or the broker restarts: requested tasks come again, parked ones stay."""

from __future__ import annotations

import pytest
from redis import Redis

from celery_throttle.embedded import EmbeddedServer
from tests.failures.tools import (
    AT_ONCE,
    DOORS,
    counts,
    cut,
    most_at_once,
    redeliver,
    unacknowledged,
    wait_returned,
)
from tests.support.journal import Journal
from tests.support.looks import PATIENCE
from tests.support.relay import Relay
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers, alive

LIMITED = "tests.support.apps.limited"

pytestmark = [
    pytest.mark.parametrize("own_server", [{"persistent": True}], indirect=True),
]


@pytest.fixture(autouse=True)
def store_apart(redis: Redis, server: EmbeddedServer, workers: Workers) -> None:
    """Let the store be the session's server; the broker is the test's own."""
    assert redis.ping()
    workers.backend = server.url
    workers.conf.update(throttle_url=server.url)


def test_connection_lost(own_server: EmbeddedServer, workers: Workers, journal: Journal, state: State) -> None:
    worker = workers.start(DOORS, concurrency=3)
    app = workers.app(DOORS)
    app.hold.delay("early")
    app.hold_late.delay("late zero")
    journal.wait_running(2)
    late_resumed = app.hold_late.delay("late resumed")
    state.wait_parked(late_resumed)
    direct = app.hold_again.delay("late direct")
    journal.wait_running(1, "late direct")  # no slot left: a task under a limit that is not full waits for one
    waiting = [app.pair.delay("waiting"), app.plain.delay("waiting plain 1"), app.plain.delay("waiting plain 2")]
    for result in waiting:
        worker.wait_for_log(rf"{result.id}\] received")
    until(lambda: len(unacknowledged(workers)) == 2 + len(waiting))  # "late zero" and "late direct" run
    journal.let_go("late zero")
    journal.wait_running(1, "late resumed")

    cut(own_server)
    journal.let_go("early")
    for result in (direct, *waiting):
        worker.wait_for_log(rf"{result.id}\] received", times=2, timeout=AT_ONCE)
    until(lambda: any(run.label.startswith("waiting") for run in journal.runs()), timeout=AT_ONCE)
    # The second delivery of the one that runs is set aside, not run beside the first.
    journal.let_go("late resumed")
    until(lambda: state.has_second(direct), timeout=AT_ONCE, describe=state.describe)
    journal.let_all_go()

    journal.wait_finished(7, timeout=AT_ONCE)
    state.wait_clean()
    assert set(counts(journal).values()) == {1}
    assert len(journal.runs()) == 7
    assert {most_at_once(journal, task) for task in (".hold", ".hold_late", ".hold_again")} == {1}
    until(lambda: not unacknowledged(workers), describe=lambda: str(unacknowledged(workers)))


def test_broker_restarted(own_server: EmbeddedServer, workers: Workers, journal: Journal, state: State) -> None:
    """Parked tasks do not need the broker; a permit goes back at the latest when the broker is there again.

    A worker with unacknowledged messages may end when its broker is down (kombu 5.7 cannot put them back then).
    """
    worker = workers.start(DOORS, concurrency=3)
    app = workers.app(DOORS)
    app.hold.delay("early")
    app.hold_late.delay("late zero")
    journal.wait_running(2)
    late_resumed = app.hold_late.delay("late resumed")
    state.wait_parked(late_resumed)
    early_parked = app.hold.delay("early parked")
    state.wait_parked(early_parked)
    late_parked = app.hold_late.delay("late parked")
    state.wait_parked(late_parked)
    journal.let_go("late zero")
    journal.wait_running(1, "late resumed")
    journal.wait_begun(app.hold_again.delay("late direct"))
    app.pair.delay("waiting")
    worker.wait_for_log("received", times=7)

    own_server.kill()
    worker.wait_for_log("Connection to broker lost|Cannot connect to|Unrecoverable error")
    journal.let_go("early", "late resumed", "late direct")
    journal.wait_finished(4)
    assert set(state.parked) == {early_parked.id, late_parked.id}
    own_server.restart()
    until(lambda: not worker.running or worker.log().count("Connected to") == 2, timeout=AT_ONCE)
    if not worker.running:
        workers.start(DOORS, concurrency=3)
    redeliver(workers)
    journal.let_all_go()

    journal.wait_finished(7, timeout=AT_ONCE)
    state.wait_clean()
    until(lambda: not unacknowledged(workers), describe=lambda: str(unacknowledged(workers)))
    # No worker could acknowledge this one: it ended while the broker was down.
    assert {label for label, number in counts(journal).items() if number > 1} <= {"late direct"}
    assert {most_at_once(journal, task) for task in (".hold", ".hold_late", ".hold_again")} == {1}


def test_task_revoked_while_the_broker_goes_away_is_reported(
    own_server: EmbeddedServer, server: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    """The store's answer comes while there is no broker: with gevent the gate goes on then. It is reported once."""
    with Relay(server.port) as relay:
        # It takes gevent a second to notice that the broker is gone, as long as we wait for the store.
        conf, patient = {"throttle_url": relay.url}, {PATIENCE: "60"}
        worker = workers.start(DOORS, pool="gevent", concurrency=1, conf=conf, env=patient)
        app = workers.app(DOORS)
        journal.wait_begun(app.hold.delay("first"))
        victim = app.hold.delay("victim")
        worker.wait_for_log(rf"{victim.id}\] parked")  # it has the reply

        relay.hold_replies()
        victim.revoke()
        until(lambda: not state.parked, timeout=AT_ONCE)
        own_server.kill()
        worker.wait_for_log("Cannot connect to")
        relay.pass_replies()

        workers.wait_discarded(victim, timeout=AT_ONCE)
        assert not own_server.running


def test_late_acknowledged_tasks_cancelled_on_connection_loss(
    own_server: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    """``worker_cancel_long_running_tasks_on_connection_loss``: they run again, from the broker or from the store."""
    workers.conf["worker_cancel_long_running_tasks_on_connection_loss"] = True
    app = workers.start_app(DOORS, concurrency=4)
    app.hold_late.delay("zero")
    app.hold_again.delay("direct")
    journal.wait_running(2)
    resumed = app.hold_late.delay("resumed")
    state.wait_parked(resumed)
    journal.let_go("zero")
    journal.wait_running(1, "resumed")
    victims = [run.pid for run in journal.running()]

    cut(own_server)
    until(lambda: not any(alive(pid) for pid in victims), timeout=AT_ONCE)
    journal.let_all_go()

    wait_returned(journal, 3, timeout=AT_ONCE)
    state.wait_clean()
    assert counts(journal) == {"zero": 1, "direct": 2, "resumed": 2}
    assert {most_at_once(journal, task) for task in (".hold_late", ".hold_again")} == {1}
