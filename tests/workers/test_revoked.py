"""Parked tasks that are revoked: by id, among thousands of others, or by a stamped header."""

from __future__ import annotations

import pytest
from celery.exceptions import TaskRevokedError
from celery.utils import uuid
from redis import Redis

from tests.support.journal import Journal
from tests.support.remote import wait_heard
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Workers

DOORS = "tests.support.apps.doors"


def calls(redis: Redis) -> int:
    """Return how many scripts the server has run."""
    return int(redis.info("commandstats")["cmdstat_evalsha"]["calls"])


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_thousands_of_revoked_ids_cost_a_few_calls(
    workers: Workers, journal: Journal, state: State, redis: Redis, pool: str
) -> None:
    """The store has two of them. That one is revoked again does not bring the others again."""
    worker = workers.start(DOORS, pool=pool)
    app = workers.app(DOORS)
    journal.wait_begun(app.hold.delay("first"))
    one, two, three = (app.hold.delay("waits") for _ in range(3))
    state.wait_parked(one, two, three)
    wait_heard(app.app, worker)
    for among in ([*(uuid() for _ in range(2000)), one.id, *(uuid() for _ in range(2000)), two.id], [two.id, three.id]):
        before = calls(redis)
        app.app.control.revoke(among)
        workers.wait_discarded(*(each for each in (one, two, three) if each.id in among))
        assert calls(redis) - before < 100
    until(lambda: state.parked == [])


def test_parked_task_that_is_revoked_by_a_stamp_ends_at_its_turn(
    workers: Workers, journal: Journal, state: State
) -> None:
    """It does not run, and the next task gets its permit at once."""
    worker = workers.start(DOORS)
    app = workers.app(DOORS)
    journal.wait_begun(app.hold.delay("first"))
    stamped = app.hold.si("stamped")
    stamped.stamp(customer="acme")
    waits, after = stamped.apply_async(), app.hold.delay("after")
    state.wait_parked(waits, after)
    wait_heard(app.app, worker)
    assert app.app.control.revoke_by_stamped_headers({"customer": ["acme"]}, reply=True, timeout=20, limit=1)
    assert state.parked == [waits.id, after.id]
    journal.let_go("first", "after")
    with pytest.raises(TaskRevokedError):
        waits.get(timeout=HANGS_AFTER)
    after.get(timeout=HANGS_AFTER)
    assert journal.order() == ["first", "after"]
    state.wait_empty()
