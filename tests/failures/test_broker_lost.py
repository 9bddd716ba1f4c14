"""The broker's connection breaks, or the broker restarts: requested tasks come again, parked ones stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chord
from redis import Redis

from celery_throttle.embedded import EmbeddedServer
from tests.failures.tools import DOORS, ONCE, counts, cut, most_at_once, redeliver, unacknowledged, wait_returned
from tests.support.journal import Journal
from tests.support.looks import PATIENCE
from tests.support.relay import Relay
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, always, until
from tests.support.workers import Worker, Workers, alive

pytestmark = pytest.mark.parametrize("own_server", [{"persistent": True}], indirect=True)


@pytest.fixture(autouse=True)
def relay(redis: Redis, server: EmbeddedServer, workers: Workers) -> Iterator[Relay]:
    """Let the store be the session's server, with a relay in front; the broker is the test's own."""
    assert redis.ping()
    workers.backend = server.url
    workers.conf["throttle_url"] = server.url
    with Relay(server.port) as between:
        yield between


def start(workers: Workers, journal: Journal, state: State) -> tuple[Worker, Any, Any]:
    """Fill a worker of three slots: with an early task, with a late one of the store, and with one of the broker."""
    worker = workers.start(DOORS, concurrency=3)
    app = workers.app(DOORS)
    app.hold.delay("early")
    app.hold_late.delay("late zero")
    journal.wait_running(2)
    state.wait_parked(app.hold_late.delay("late resumed"))
    direct = journal.wait_begun(app.hold_again.delay("late direct"))
    journal.let_go("late zero")
    journal.wait_running(1, "late resumed")
    return worker, app, direct


def check(workers: Workers, journal: Journal, state: State) -> None:
    """Nothing is left anywhere, and the cap held."""
    state.wait_clean()
    until(lambda: not unacknowledged(workers), describe=lambda: str(unacknowledged(workers)))
    assert {most_at_once(journal, task) for task in (".hold", ".hold_late", ".hold_again")} == {1}


def restart(broker: EmbeddedServer, workers: Workers, app: str, concurrency: int) -> None:
    """Restart the broker, which delivers all messages again.

    A worker with unacknowledged messages may have ended (kombu 5.7 cannot put them back while its broker is down).
    """
    (worker,) = workers.started
    broker.restart()
    until(lambda: not worker.running or worker.log().count("Connected to") == 2)
    if not worker.running:
        workers.start(app, concurrency=concurrency)
    redeliver(workers)


def test_connection_lost(own_server: EmbeddedServer, workers: Workers, journal: Journal, state: State) -> None:
    worker, app, direct = start(workers, journal, state)
    # No slot is left: also a task under a limit that is not full waits for one.
    waiting = [app.pair.delay("waiting"), app.plain.delay("waiting plain 1"), app.plain.delay("waiting plain 2")]
    for result in waiting:
        worker.wait_for_log(rf"{result.id}\] received")
    until(lambda: len(unacknowledged(workers)) == 1 + len(waiting))

    cut(own_server)
    journal.let_go("early")
    for result in (direct, *waiting):
        worker.wait_for_log(rf"{result.id}\] received", times=2)
    until(lambda: any(run.label.startswith("waiting") for run in journal.runs()))
    # The second delivery of the one that runs is set aside, not run beside the first.
    journal.let_go("late resumed")
    until(lambda: state.has_second(direct), describe=state.describe)
    journal.let_all_go()

    journal.wait_finished(7)
    check(workers, journal, state)
    assert set(counts(journal).values()) == {1}
    assert len(journal.runs()) == 7


def test_broker_restarted(own_server: EmbeddedServer, workers: Workers, journal: Journal, state: State) -> None:
    """Parked tasks do not need the broker; a permit goes back at the latest when the broker is there again."""
    worker, app, _ = start(workers, journal, state)
    parked = [app.hold.delay("early parked"), app.hold_late.delay("late parked")]
    state.wait_parked(*parked)
    app.pair.delay("waiting")
    worker.wait_for_log("received", times=7)

    own_server.kill()
    worker.wait_for_log("Connection to broker lost|Cannot connect to|Unrecoverable error")
    journal.let_go("early", "late resumed", "late direct")
    journal.wait_finished(4)
    assert set(state.parked) == {result.id for result in parked}
    restart(own_server, workers, DOORS, concurrency=3)
    journal.let_all_go()

    journal.wait_finished(7)
    check(workers, journal, state)
    # No worker could acknowledge this one: it ended while the broker was down.
    assert {label for label, number in counts(journal).items() if number > 1} <= {"late direct"}


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_permits_come_back_while_the_broker_is_away(
    own_server: EmbeddedServer, workers: Workers, journal: Journal, state: State, pool: str
) -> None:
    """Kombu blocks Celery's consumer then, or the heartbeat of a solo worker."""
    worker = workers.start(DOORS, pool=pool, concurrency=2)
    app = workers.app(DOORS)
    labels = ["early"] if pool == "solo" else ["early", "other"]
    for label, task in zip(labels, (app.hold, app.pair), strict=False):
        # Parked first, since kombu ends a worker that has a message to put back (docs/reference/versions.md).
        state.limit(task.name).pause()
        state.wait_parked(task.delay(label))
        state.limit(task.name).resume()
    journal.wait_running(len(labels))

    own_server.kill()
    if pool != "solo":
        worker.wait_for_log("Trying again in")
    journal.let_all_go()
    journal.wait_finished(len(labels))
    until(lambda: not state.holders and not state.used, describe=state.describe)
    assert worker.running

    restart(own_server, workers, DOORS, concurrency=2)
    app.hold.delay("next")
    journal.wait_finished(1, "next")
    state.wait_empty()
    assert counts(journal)["early"] == 1


def test_grant_that_comes_without_a_broker_leaves_the_lock(
    own_server: EmbeddedServer, relay: Relay, workers: Workers, journal: Journal
) -> None:
    """The broker has the message, and will deliver it again."""
    worker = workers.start(ONCE, concurrency=2, conf={"throttle_url": relay.url})
    app = workers.app(ONCE)
    journal.let_go("before")
    app.hold.delay("before").get(timeout=HANGS_AFTER)  # so that the store has the scripts
    until(lambda: app.hold.locked_by("before") is None and relay.quiet_for(0.3))
    relay.hold_replies()
    first = app.hold.delay("a")
    until(lambda: app.hold.locked_by("a").state == "running")
    own_server.kill()
    worker.wait_for_log("Connection to broker lost|Cannot connect to")
    relay.pass_replies()

    always(lambda: app.hold.locked_by("a") is not None, seconds=1.5)
    assert app.hold.locked_by("a").task_id == first.id
    restart(own_server, workers, ONCE, concurrency=2)
    journal.let_all_go()
    journal.wait_finished(1, "a")
    until(lambda: app.hold.locked_by("a") is None)
    assert counts(journal)["a"] == 1


def test_late_acknowledged_tasks_cancelled_on_connection_loss(
    own_server: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    """``worker_cancel_long_running_tasks_on_connection_loss``: they run again, from the broker or from the store."""
    workers.conf["worker_cancel_long_running_tasks_on_connection_loss"] = True
    start(workers, journal, state)
    victims = [run.pid for run in journal.running() if run.label != "early"]

    cut(own_server)
    until(lambda: not any(alive(pid) for pid in victims))
    journal.let_all_go()

    wait_returned(journal, 4)
    check(workers, journal, state)
    assert counts(journal) == {"early": 1, "late zero": 1, "late direct": 2, "late resumed": 2}


def test_task_revoked_while_the_broker_goes_away_is_reported(
    own_server: EmbeddedServer, relay: Relay, workers: Workers, journal: Journal, state: State
) -> None:
    """The store's answer comes while there is no broker: with gevent the gate goes on then. It is reported once."""
    # It takes gevent a second to notice that the broker is gone, as long as we wait for the store.
    conf, patient = {"throttle_url": relay.url}, {PATIENCE: "60"}
    worker = workers.start(DOORS, pool="gevent", concurrency=1, conf=conf, env=patient)
    app = workers.app(DOORS)
    journal.wait_begun(app.hold.delay("first"))
    victim = app.hold.delay("victim")
    worker.wait_for_log(rf"{victim.id}\] parked")  # it has the reply

    relay.hold_replies()
    victim.revoke()
    until(lambda: not state.parked)
    own_server.kill()
    worker.wait_for_log("Cannot connect to")
    relay.pass_replies()

    workers.wait_discarded(victim)
    assert not own_server.running


def test_task_revoked_in_an_outage_is_reported_by_another(
    own_server: EmbeddedServer, relay: Relay, workers: Workers, journal: Journal, state: State, tmp_path: Path
) -> None:
    """It has its store before it has its broker: the revoke cannot be reported then."""
    how: Any = {"pool": "gevent", "conf": {"throttle_url": relay.url}}
    how["options"] = ["--statedb", str(tmp_path / "state")]
    journal.let_all_go()
    worker = workers.start(DOORS, **how)
    app = workers.app(DOORS)
    limit = state.limit(app.hold.name)
    limit.pause()
    end: Any = chord([app.hold.s("revoked"), app.hold.s("other")])(app.collect.s())
    revoked, other = end.parent.results
    state.wait_parked(revoked, other)
    relay.refuse()
    app.app.control.revoke(revoked.id)
    worker.wait_for_log(f"revoked: {revoked.id}")
    worker.term()
    worker.wait()

    relay.accept()
    own_server.kill()
    second = workers.start(DOORS, **how, wait=False)
    until(lambda: second.log().count("Cannot connect to") >= 2)
    own_server.restart()
    second.wait_ready()
    limit.resume()
    journal.wait_finished(1, "other")
    until(lambda: end.state == "FAILURE")
