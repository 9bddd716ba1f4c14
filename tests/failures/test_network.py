"""The way to the store forgets, is late, slow or refused: hints and first come, first started.

Workers with `NO_LOOK` never look on their own, so a lost hint hangs.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from contextlib import suppress

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from celery_throttle.embedded import EmbeddedServer
from tests.failures.tools import DOORS, NO_LOOK, SEAMS, counts, script_calls
from tests.support.journal import Journal
from tests.support.looks import PATIENCE
from tests.support.relay import Relay
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers

MEGABYTE = 1 << 20


@pytest.fixture
def only_hints(workers: Workers) -> None:
    workers.env.update(NO_LOOK)


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


@pytest.mark.usefixtures("only_hints")
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

    journal.wait_finished(1, "next")
    journal.let_all_go()
    journal.wait_finished(5)
    state.wait_clean()


@pytest.mark.usefixtures("only_hints")
def test_hints_arrive_again(
    store: EmbeddedServer, relay: Relay, workers: Workers, journal: Journal, state: State
) -> None:
    """After a NAT has forgotten their connection, without notice to either side; after a script ran, which refuses."""
    left = workers.start(DOORS, concurrency=1, queues="left", conf={"throttle_url": relay.url})
    app = workers.start_app(DOORS, concurrency=1, queues="right")

    def start_by_hint(number: int) -> None:
        journal.let_go(f"first {number}")
        journal.wait_running(1, f"next {number}")
        journal.let_go(f"next {number}")

    def park(number: int) -> None:
        journal.wait_begun(app.right.delay(f"first {number}"))
        state.wait_parked(app.left.delay(f"next {number}"))

    with state.client() as client:
        park(1)
        before = subscribers(client)
        relay.forget_subscriptions()
        until(lambda: subscribers(client) - before)
        start_by_hint(1)

        park(2)
        client.config_set("lua-time-limit", 1)
        script = threading.Thread(target=run_for_ever, args=(store.url,))
        script.start()
        until(lambda: is_busy(client))
        relay.hang_up()
        left.wait_for_log(r"refuses hints \(BUSY")
        client.script_kill()
        script.join()
        left.wait_for_log("hints arrive again")
        assert "ACL" not in left.log()
        start_by_hint(2)
    journal.wait_finished(4)
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

    journal.wait_finished(4)
    assert journal.max_running() <= 2
    state.wait_clean()
    said = [line for line in left.log().splitlines() if re.search(r"WARNING.*hints", line)]
    assert len(said) == 1, said


@pytest.mark.parametrize("until_log", ["", "lost the store"])
def test_first_delivery_is_first_despite_a_late_reply(
    workers: Workers, journal: Journal, state: State, relay: Relay, until_log: str
) -> None:
    """One worker gets no reply from the store while another parks messages that the broker delivered later."""
    late = workers.start(SEAMS, concurrency=4, conf={"throttle_url": relay.url})
    app = workers.app(SEAMS)
    early = [journal.wait_begun(app.one.delay("0"))]  # or a slow worker loses the store before it has the permit
    until(lambda: relay.quiet_for(0.2))
    relay.hold_replies()
    early += [app.one.delay(str(place)) for place in range(1, 14)]
    late.wait_for_log("received", times=14)
    workers.start(SEAMS, concurrency=4, queues="alpha")
    later = [app.one.apply_async([str(place)], queue="alpha") for place in range(14, 28)]
    state.wait_parked(*later)
    late.wait_for_log(until_log)
    relay.pass_replies()
    state.wait_parked(*early[1:])
    assert state.parked == [result.id for result in (*early[1:], *later)]
    journal.let_all_go()

    journal.wait_finished(28)
    state.wait_clean()


def test_task_during_declarations_is_behind_earlier_ones(
    workers: Workers, journal: Journal, state: State, relay: Relay
) -> None:
    """The store is back, but has not confirmed the declaration of the limits yet."""
    worker = workers.start(SEAMS, concurrency=4, conf={"throttle_url": relay.url})
    app = workers.app(SEAMS)
    until(lambda: relay.quiet_for(0.2))
    relay.refuse()
    worker.wait_for_log("cannot reach the store")
    for place in range(4):
        app.frame.delay(str(place))
    worker.wait_for_log("received", times=4)
    with state.client() as client:
        calls = script_calls(client)
        relay.hold_replies_from(b"EVALSHA")
        relay.accept()
        until(lambda: script_calls(client) > calls)
    for place in range(4, 12):
        app.frame.delay(str(place))
    worker.wait_for_log("received", times=12)
    relay.pass_replies()

    journal.wait_finished(12)
    # Those that start in one moment start in any order.
    assert set(journal.order()[:4]) == {"0", "1", "2", "3"}, journal.order()
    state.wait_clean()


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_many_large_messages_are_parked_over_a_slow_network(
    workers: Workers, journal: Journal, state: State, relay: Relay, pool: str
) -> None:
    """All together they take twelve seconds; the store is taken for lost after four of silence."""
    workers.conf.update(throttle_url=relay.url, worker_prefetch_multiplier=0)
    slow = workers.start(DOORS, concurrency=1, pool=pool, env={PATIENCE: "4"})
    app = workers.app(DOORS)
    limit = state.limit(app.hold.name)
    limit.pause()
    relay.calls_per_second = MEGABYTE

    sent = [app.hold.delay(str(number), "x" * (MEGABYTE // 2)) for number in range(24)]

    state.wait_parked(*sent)
    assert "lost the store" not in slow.log()
    relay.calls_per_second = 0
    limit.resume()
    journal.let_all_go()
    journal.wait_finished(len(sent))
    state.wait_clean()
    assert journal.order() == [str(number) for number in range(len(sent))]


def by_second(log: str, text: str) -> Counter[str]:
    """Return how many lines with the text each second has, by the lines' own time."""
    return Counter(re.findall(rf"^\[(\S+ [\d:]+),\d+: .*{text}", log, re.MULTILINE))


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_store_that_is_cut_again_and_again_fills_no_log(
    workers: Workers, journal: Journal, state: State, relay: Relay, pool: str
) -> None:
    worker = workers.start(DOORS, pool=pool, concurrency=2, conf={"throttle_url": relay.url})
    app = workers.app(DOORS)
    journal.let_all_go()
    sent: list[str] = []

    def cut(cuts: int) -> bool:
        relay.hang_up()
        sent.append(app.hold.delay(str(len(sent))).id)
        return len(relay.attempts) >= cuts

    until(lambda: cut(150), every=0.05)

    journal.wait_finished(len(sent))
    state.wait_clean()
    assert set(counts(journal).values()) == {1}
    for text in ("lost the store", "cannot reach the store", "store is back", "cannot renew", "refuse"):
        # Two lines may be a second apart, less the time that the first one took.
        assert max(by_second(worker.log(), text).values(), default=0) <= 2
    worker.wait_for_log(r"WARNING/MainProcess\] celery_throttle: lost the store.*; and \d+ more in the last second$")
