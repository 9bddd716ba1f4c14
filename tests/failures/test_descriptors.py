"""A worker that has no descriptor left for a while connects to its store again when there are some."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from celery_throttle.embedded import EmbeddedServer
from tests.failures.tools import DOORS
from tests.support.journal import Journal
from tests.support.remote import throttle_in
from tests.support.waiting import until
from tests.support.workers import Workers


@pytest.mark.parametrize("left", [0, 1, 2, 3])
def test_descriptors_are_exhausted_while_it_connects(
    store: EmbeddedServer, workers: Workers, journal: Journal, left: int
) -> None:
    """Enough are left for no socket, or for one, or for one without the duplicates that the loop needs."""
    worker = workers.start(DOORS, concurrency=1)
    app = workers.app(DOORS)
    journal.let_all_go()
    app.hold.delay("before")
    journal.wait_finished(1, "before")
    before = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
    store.kill()
    until(lambda: not throttle_in(app.app, worker)["groups"][0]["up"])
    held = {int(each.name) for each in Path(f"/proc/{worker.pid}/fd").iterdir()}
    free = sorted(set(range(max(held) + 10)) - held)
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (free[left], before[1]))
    store.restart()
    until(lambda: "Too many open files" in worker.log() or throttle_in(app.app, worker)["groups"][0]["up"])
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, before)

    def stands() -> bool:
        (group,) = throttle_in(app.app, worker)["groups"]
        return bool(group["up"] and group["hints"])

    until(stands, describe=worker.tail)
    app.hold.delay("after")
    journal.wait_finished(1, "after")
