"""The worker's user may not use the channel of the hints: workers find everything by looking."""

from __future__ import annotations

import re

from celery_throttle.embedded import EmbeddedServer
from tests.failures.tools import AT_ONCE, DOORS
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.workers import Workers


def test_user_without_rights_on_the_channel(
    store: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    with state.client() as client:
        client.execute_command("ACL", "SETUSER", "silent", "on", ">secret", "resetchannels", "~*", "+@all")
    workers.env["LOOK_EVERY"] = "0.5"
    silent = {"throttle_url": f"redis://silent:secret@127.0.0.1:{store.port}/0"}
    left = workers.start(DOORS, concurrency=2, queues="left", conf=silent)
    app = workers.start_app(DOORS, concurrency=2, queues="right", conf=silent)
    shared = state.limit("shared")
    shared.pause()
    for number, task in enumerate([app.left, app.right, app.left, app.right]):
        state.wait_parked(task.delay(str(number)))
    shared.override(2)
    journal.let_all_go()

    shared.resume()  # the first worker to look starts its own, and has a hint for the other one

    journal.wait_finished(4, timeout=AT_ONCE)
    assert journal.max_running() <= 2
    state.wait_clean()
    said = [line for line in left.log().splitlines() if re.search(r"WARNING.*hints", line)]
    assert len(said) == 1, said
