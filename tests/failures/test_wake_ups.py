"""A free permit reaches a worker that can use it. Most workers here never look on their own: a lost hint hangs."""

from __future__ import annotations

import re
import threading
from contextlib import suppress

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from celery_throttle.embedded import EmbeddedServer
from tests.failures.tools import AT_ONCE, DOORS, NO_LOOK, counts
from tests.support.journal import Journal
from tests.support.relay import Relay
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers


@pytest.fixture(autouse=True)
def only_hints(workers: Workers) -> None:
    workers.env.update(NO_LOOK)


def test_worker_that_had_no_slot_when_the_permit_came_free(workers: Workers, journal: Journal, state: State) -> None:
    workers.start(DOORS, concurrency=1, queues="left")
    app = workers.start_app(DOORS, concurrency=2, queues="right")
    journal.wait_begun(app.left.delay("first"))
    state.wait_parked(app.right.delay("next"))
    app.plain.apply_async(["plain 1"], queue="right")
    app.plain.apply_async(["plain 2"], queue="right")
    journal.wait_running(2, task="plain")

    journal.let_go("first", "next")
    journal.wait_finished(1, "first")
    app.plain.apply_async(["plain 3"], queue="left")  # comes to the worker that gave the permit back, after that
    journal.let_go("plain 3")
    journal.wait_finished(1, "plain 3")
    assert counts(journal).get("next", 0) == 0
    journal.let_go("plain 1")

    journal.wait_finished(1, "next", timeout=AT_ONCE)
    journal.let_all_go()
    journal.wait_finished(5)
    state.wait_clean()


def test_a_dead_connection_for_hints_is_noticed(relay: Relay, workers: Workers, journal: Journal, state: State) -> None:
    """A NAT has forgotten it, without notice to either side."""
    workers.start(DOORS, concurrency=1, queues="left", conf={"throttle_url": relay.url})
    app = workers.start_app(DOORS, concurrency=1, queues="right")
    journal.wait_begun(app.right.delay("first"))
    state.wait_parked(app.left.delay("next"))
    with state.client() as client:
        before = subscribers(client)

        relay.forget_subscriptions()

        until(lambda: subscribers(client) - before, timeout=AT_ONCE)
    journal.let_all_go()
    journal.wait_finished(1, "next", timeout=AT_ONCE)
    state.wait_clean()


def test_hints_that_are_refused_while_a_script_runs_arrive_later(
    store: EmbeddedServer, relay: Relay, workers: Workers, journal: Journal, state: State
) -> None:
    left = workers.start(DOORS, concurrency=1, queues="left", conf={"throttle_url": relay.url})
    app = workers.start_app(DOORS, concurrency=1, queues="right")
    journal.wait_begun(app.right.delay("first"))
    state.wait_parked(app.left.delay("next"))
    with state.client() as client:
        client.config_set("lua-time-limit", 1)
        script = threading.Thread(target=run_for_ever, args=(store.url,))
        script.start()
        until(lambda: is_busy(client))
        relay.hang_up()
        left.wait_for_log(r"refuses hints \(BUSY", timeout=AT_ONCE)
        client.script_kill()
        script.join()
    left.wait_for_log("hints arrive again", timeout=AT_ONCE)
    assert "ACL" not in left.log()

    journal.let_all_go()
    journal.wait_finished(1, "next", timeout=AT_ONCE)
    state.wait_clean()


def test_user_without_rights_on_the_channel(
    store: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    """Workers find everything by looking."""
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


def subscribers(client: Redis) -> set[str]:
    return {each["id"] for each in client.client_list(_type="pubsub")}


def run_for_ever(url: str) -> None:
    with Redis.from_url(url, retry=None, socket_timeout=60) as client, suppress(ResponseError):
        client.eval("while true do end", 0)


def is_busy(client: Redis) -> bool:
    try:
        client.ping()
    except ResponseError as error:
        return "BUSY" in str(error)
    return False
