"""A free permit reaches a worker that can use it. The workers never look on their own here: a lost hint hangs."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from celery_throttle.embedded import EmbeddedServer
from tests.failures.tools import AT_ONCE, DOORS, LONG_LEASE, NO_LOOK, counts, most_at_once
from tests.support.journal import Journal
from tests.support.relay import Relay
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers

pytestmark = pytest.mark.worker


@pytest.fixture(autouse=True)
def only_hints(workers: Workers) -> None:
    workers.conf["throttle_lease"] = LONG_LEASE
    workers.env.update(NO_LOOK)


def test_shared_limit_keeps_the_order_over_queues_and_workers(workers: Workers, journal: Journal, state: State) -> None:
    workers.start(DOORS, concurrency=2, queues="left")
    app = workers.start_app(DOORS, concurrency=2, queues="right")
    journal.wait_begun(app.left.delay("0"))
    tasks = [app.right, app.left, app.right, app.right, app.left, app.left, app.right, app.left]
    for number, task in enumerate(tasks, 1):
        state.wait_parked(task.delay(str(number)))  # one after the other: two queues have no order between them

    journal.let_all_go()

    journal.wait_finished(1 + len(tasks), timeout=AT_ONCE)
    assert journal.order() == [str(number) for number in range(1 + len(tasks))]
    assert most_at_once(journal, "shared") == 1
    state.wait_clean()


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


def test_queue_without_a_worker_does_not_hold_the_others_up(workers: Workers, journal: Journal, state: State) -> None:
    workers.start(DOORS, concurrency=2, queues="left")
    gone = workers.start(DOORS, concurrency=2, queues="right")
    app = workers.app(DOORS)
    journal.wait_begun(app.left.delay("0"))
    for number, task in enumerate([app.right, app.left, app.right, app.left, app.left], 1):
        state.wait_parked(task.delay(str(number)))
    gone.term()
    gone.wait()
    journal.let_all_go()

    journal.wait_finished(4, task="left", timeout=AT_ONCE)
    assert journal.order() == ["0", "2", "4", "5"]
    app.left.delay("6").get(timeout=AT_ONCE)  # nor a later one
    assert len(state.parked) == 2
    workers.start(DOORS, concurrency=2, queues="right")

    journal.wait_finished(2, task="right", timeout=AT_ONCE)
    state.wait_clean()
    assert journal.order()[-2:] == ["1", "3"]
    assert most_at_once(journal, "shared") == 1


def test_one_limit_does_not_hold_another_up(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(DOORS, concurrency=2)
    journal.wait_begun(app.hold.delay("first"))
    for number in range(50):
        app.hold.delay(f"parked {number}")
    journal.let_go(*(f"pair {number}" for number in range(10)))
    for number in range(10):
        app.pair.delay(f"pair {number}")

    journal.wait_finished(10, task="pair", timeout=AT_ONCE)
    assert counts(journal)["first"] == 1
    assert len(journal.runs(task=".hold")) == 1
    journal.let_all_go()
    journal.wait_finished(61, timeout=AT_ONCE * 2)
    state.wait_clean()
    assert journal.order(task=".hold") == ["first", *(f"parked {number}" for number in range(50))]


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
