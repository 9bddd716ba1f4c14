"""An ended task leaves nothing, and one that ends badly harms no other task."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from celery import group
from celery.result import AsyncResult
from redis import Redis

from celery_throttle.embedded import EmbeddedServer
from tests.failures.tools import AT_ONCE, DOORS, LONG_LEASE, SEAMS
from tests.support.journal import Journal
from tests.support.relay import Relay
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers


def _group(signatures: Iterable[Any]) -> list[AsyncResult[Any]]:
    """Publish them with a caller that waits for all."""
    results: Any = group(signatures).apply_async()
    return list(results)


def test_outcome_for_duplicates(workers: Workers, journal: Journal, state: State) -> None:
    """Kept for those that were published while a caller waits for them, and no longer than until the last is gone."""
    workers.conf["throttle_lease"] = LONG_LEASE
    app = workers.start_app(SEAMS, concurrency=2)
    first = journal.wait_begun(app.once.delay("a"))
    told, revoked = _group(app.once.s("a") for _ in range(2))
    state.wait_parked(told, revoked)
    revoked.revoke()
    until(lambda: revoked.id not in state.parked, timeout=AT_ONCE)

    journal.let_all_go()

    assert [result.get(timeout=AT_ONCE) for result in (first, told)] == ["a"] * 2
    state.wait_clean(timeout=10)


def test_expired_task_whose_end_cannot_be_written(
    own_server: EmbeddedServer, workers: Workers, journal: Journal, state: State, server: EmbeddedServer, redis: Redis
) -> None:
    """The result backend refuses it; the task that was granted with it runs all the same."""
    with Redis.from_url(own_server.url) as backend:
        assert redis.ping()
        workers.broker, workers.backend = server.url, own_server.url
        workers.conf["throttle_lease"] = LONG_LEASE
        workers.start(DOORS, concurrency=2)
        app = workers.app(DOORS)
        pair = state.limit("tests.support.apps.doors.pair")
        pair.pause()
        expires = 0.5
        expired = app.pair.apply_async(["expired"], expires=expires)
        sent = time.monotonic()
        after = app.pair.delay("after")
        state.wait_parked(expired, after)
        until(lambda: time.monotonic() > sent + expires)
        backend.execute_command("ACL", "SETUSER", "default", "-set", "-setex")
        journal.let_all_go()

        pair.resume()

        journal.wait_finished(1, "after", timeout=AT_ONCE)


def test_revoked_while_parked_when_many_were_revoked_before(workers: Workers, journal: Journal, state: State) -> None:
    workers.conf["throttle_lease"] = LONG_LEASE
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


def test_pauses_between_attempts_to_reach_the_store(store: EmbeddedServer, workers: Workers) -> None:
    """A lease must not run out for a pause: never longer than a third of it."""
    lease = 2
    workers.conf["throttle_lease"] = lease
    with Relay(store.port) as relay:
        workers.start(DOORS, concurrency=1, conf={"throttle_url": relay.url})
        began = time.monotonic()
        relay.refuse()
        until(lambda: time.monotonic() > began + 4, timeout=AT_ONCE)
        attempts = [at for at in relay.attempts if at > began]
        pauses = [after - before for before, after in pairwise(attempts)]
        assert max(pauses) <= lease / 3 + 0.5, pauses
