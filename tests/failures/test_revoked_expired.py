"""Revoked and expired tasks take no permit and leave no record."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from celery import chord
from celery.result import AsyncResult

from celery_throttle.embedded import EmbeddedServer
from tests.failures.tools import AT_ONCE, DOORS, counts
from tests.support.journal import Journal
from tests.support.relay import Relay
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers


@pytest.fixture
def app(workers: Workers, journal: Journal) -> Any:
    """The app, with a worker that runs `hold` "first"; all else has to wait for that."""
    workers.start_many(2, DOORS, concurrency=2)
    module = workers.app(DOORS)
    module.hold.delay("first")
    journal.wait_running(1, "first")
    return module


def revoked(result: AsyncResult[str]) -> bool:
    return str(result.state) == "REVOKED"


def test_revoked_while_parked_when_many_were_revoked_before(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(DOORS, concurrency=2, env={"CELERY_WORKER_REVOKES_MAX": "10"})
    journal.wait_begun(app.hold.delay("first"))
    before, victim, after = (app.hold.delay(label) for label in ("before", "victim", "after"))
    state.wait_parked(before, victim, after)

    app.app.control.revoke([str(uuid.uuid4()) for _ in range(20)])  # Celery forgets the oldest of them
    before.revoke()
    until(lambda: before.id not in state.parked, timeout=AT_ONCE)
    victim.revoke()

    until(lambda: state.parked == [after.id], timeout=5)
    journal.let_all_go()
    journal.wait_finished(2, timeout=AT_ONCE)
    state.wait_clean()


@pytest.mark.parametrize("why", ["revoked", "expired"])
def test_revoked_or_expired_before_arrival_costs_nothing(
    app: Any, workers: Workers, journal: Journal, state: State, why: str
) -> None:
    before = state.ids()
    assert before, "One runs."
    if why == "revoked":
        ids = [str(uuid.uuid4()) for _ in range(3)]
        assert len(app.app.control.revoke(ids, reply=True, timeout=AT_ONCE, limit=2)) == len(workers.started)
        tasks = (app.hold, app.hold, app.pair)  # the last one's limit has a free permit
        victims = [task.apply_async(["victim"], task_id=task_id) for task, task_id in zip(tasks, ids, strict=True)]
    else:
        past = datetime.now(timezone.utc) - timedelta(seconds=5)
        victims = [task.apply_async(["victim"], expires=past) for task in (app.hold, app.hold, app.pair)]

    workers.wait_discarded(*victims, timeout=AT_ONCE)
    until(lambda: all(revoked(victim) for victim in victims), timeout=AT_ONCE)
    assert state.ids() == before
    assert state.parked == []
    journal.let_all_go()
    journal.wait_finished(1)
    state.wait_clean()
    assert counts(journal) == {"first": 1}


@pytest.mark.parametrize("own_server", [{"persistent": True}], indirect=True)
def test_task_revoked_in_an_outage_is_reported_by_another(
    own_server: EmbeddedServer,
    relay: Relay,
    server: EmbeddedServer,
    workers: Workers,
    journal: Journal,
    state: State,
    tmp_path: Path,
) -> None:
    """It has its store before it has its broker: the revoke cannot be reported then."""
    workers.backend = server.url
    workers.conf["throttle_url"] = relay.url
    options = ["--statedb", str(tmp_path / "state")]
    journal.let_all_go()
    worker = workers.start(DOORS, pool="gevent", concurrency=2, options=options)
    app = workers.app(DOORS)
    limit = state.limit("tests.support.apps.doors.hold")
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
    second = workers.start(DOORS, pool="gevent", concurrency=2, options=options, wait=False)
    until(lambda: second.log().count("Cannot connect to") >= 2, timeout=AT_ONCE)
    own_server.restart()
    second.wait_ready()
    limit.resume()
    journal.wait_finished(1, "other")
    until(lambda: end.state == "FAILURE", timeout=AT_ONCE)
