"""The requirements for every kind of store."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from celery_throttle.embedded import EmbeddedServer
from tests.support.journal import Journal
from tests.support.workers import Workers

ONCE = "tests.support.apps.once"


def check_once(workers: Workers, journal: Journal) -> None:
    """A worker of the app `once` runs: claim a lock, look at it, run, reap."""
    app = workers.app(ONCE)
    held = journal.wait_begun(app.hold_one.delay("held"))
    assert app.hold_one.delay("held").id == held.id
    locked = app.hold_one.locked_by("held")
    assert (locked.task_id, locked.state) == (held.id, "running")
    assert reap(app) == 0
    journal.let_go("held")
    assert held.get(timeout=15) == "held"
    assert len(journal.runs()) == 1


def has_waitaof(server: EmbeddedServer) -> bool:
    """Whether it has the command; Redis has it from 7.2 on."""
    with Redis.from_url(server.url) as client:
        try:
            client.execute_command("WAITAOF", 0, 0, 1)
        except ResponseError as error:
            return "unknown command" not in str(error)
    return True


def skip_without_waitaof(server: EmbeddedServer) -> None:
    if not has_waitaof(server):
        pytest.skip("the server has no WAITAOF")


def reap(app: Any) -> int:
    """Run the beat task here."""
    return int(app.app.tasks["celery_throttle.reap"]())
