"""The lines of a worker's log for people: throttled tasks, parked tasks with reasons, resumed tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import pytest
from redis import Redis

from celery_throttle import ThrottleControl
from celery_throttle.embedded import EmbeddedServer
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Worker, Workers
from tests.workers.conftest import FEATURES

TERMS, ONCE = "tests.support.apps.terms", "tests.support.apps.once"
LIMITED = "tests.support.apps.limited"
MANY = 300


def greeting(worker: Worker) -> str:
    (line,) = worker.wait_for_log(r"INFO/MainProcess\] celery_throttle: .*throttled.*")
    return line.partition("celery_throttle: ")[2]


def told(worker: Worker, what: str) -> list[int]:
    """Return how many tasks each line is about that names one and counts the others."""
    lines = [line for line in worker.log().splitlines() if re.search(rf"\] {what}\b", line)]
    others = (re.search(r"; and (\d+) more in the last second$", line) for line in lines)
    return [1 + (int(found[1]) if found else 0) for found in others]


# -- at the start ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_server", [{"persistent": True}], indirect=True)
def test_worker_logs_its_throttled_tasks(own_server: EmbeddedServer, workers: Workers) -> None:
    said = greeting(workers.start(FEATURES, conf={"throttle_url": f"redis://:@127.0.0.1:{own_server.port}/0"}))
    app = workers.app(FEATURES).app
    app.finalize()
    assert re.fullmatch(
        r"\d+ tasks throttled, limits gpu, seen, single, \S+, \S+ and \d+ more(, \d+ run once)?; "
        rf"store redis://:\*\*@127\.0\.0\.1:{own_server.port}/0: (Redis|Valkey) \d\S+, "
        r"hints work, persistence by append-only file, nothing is evicted",
        said,
    ), said


@pytest.mark.parametrize("own_server", [{"options": {"maxmemory-policy": "allkeys-lru"}}], indirect=True)
def test_problems_stand_out(own_server: EmbeddedServer, workers: Workers) -> None:
    client: Any
    with Redis(port=own_server.port) as client:
        client.execute_command("ACL", "SETUSER", "silent", "on", ">secret", "resetchannels", "~*", "+@all")
    worker = workers.start(conf={"throttle_url": f"redis://silent:secret@127.0.0.1:{own_server.port}/0"})
    said = greeting(worker)
    assert said.endswith("hints are REFUSED, NO persistence, keys MAY BE EVICTED (allkeys-lru)")
    assert "store redis://silent:**@127" in said
    assert "secret" not in worker.log()


def test_a_user_that_may_ask_nothing_of_the_server(redis: Any, workers: Workers) -> None:
    redis.execute_command("ACL", "SETUSER", "few", "on", ">secret", "allchannels", "~*", "+@all", "-info", "-config")
    try:
        worker = workers.start(conf={"throttle_url": workers.broker.replace("://", "://few:secret@")})
        assert greeting(worker).endswith("/0: hints work, persistence unknown, eviction unknown")
    finally:
        redis.execute_command("ACL", "DELUSER", "few")


def test_a_store_that_does_not_answer(workers: Workers) -> None:
    said = greeting(workers.start(conf={"throttle_url": "redis://127.0.0.1:1/7"}))
    assert said.endswith("; store redis://127.0.0.1:1/7: it does not answer")


# -- parked and resumed tasks ------------------------------------------------------------------------------------------


def test_server_without_a_script_answers_in_another_order(workers: Workers, journal: Journal, state: State) -> None:
    """An unknown script is sent once more, behind later commands."""
    worker = workers.start(FEATURES, concurrency=2)
    app = workers.app(FEATURES)
    journal.wait_begun(app.one_hold.delay("first"))
    with state.client() as client:
        client.script_flush()
    assert ThrottleControl(app.app).holders(), "one of the two is known now"
    second = app.one_hold.delay("second")
    worker.wait_for_log(rf"one_hold\[{second.id}\] parked: place 1 in the line of single, held by")
    assert "Traceback" not in worker.log()


def test_parked_and_resumed_tasks_are_logged(workers: Workers, journal: Journal, state: State) -> None:
    worker = workers.start(FEATURES, concurrency=2)
    app = workers.app(FEATURES)
    first = journal.wait_begun(app.one_hold.delay("first"))
    second = app.one_hold.delay("second")
    worker.wait_for_log(
        rf"INFO/MainProcess\] Task {FEATURES}\.one_hold\[{second.id}\] parked: place 1 in the line of single, "
        rf"held by {first.id}\. Limit single is full: 1 of 1 permits are held$"
    )
    journal.let_go("first", "second")
    worker.wait_for_log(rf"INFO/MainProcess\] Task {FEATURES}\.one_hold\[{second.id}\] resumed after \d+(\.\d)? s$")
    journal.wait_finished(2)
    state.wait_empty()


def test_of_which_key_and_why(workers: Workers, journal: Journal, state: State) -> None:
    worker = workers.start(TERMS, concurrency=4)
    app = workers.app(TERMS)
    holder = app.by_name.delay("acme")
    app.by_name.delay("init")
    journal.wait_running(2)
    parked = app.by_name.delay("acme")
    (line,) = worker.wait_for_log(rf"\[{parked.id}\] parked: .*")
    assert f"place 1 in the line of {TERMS}.by_name[acme], held by {holder.id}. Limit {TERMS}.by_name[acme]" in line
    journal.let_go("go")
    journal.wait_finished(3)
    state.wait_empty()


def test_one_that_waits_for_its_lock(workers: Workers, journal: Journal, state: State) -> None:
    worker = workers.start(ONCE, concurrency=2)
    app = workers.app(ONCE)
    first = journal.wait_begun(app.hold.delay("order"))
    app.app.send_task(f"{ONCE}.hold", args=["order"], task_id="duplicate")
    worker.wait_for_log(rf"\[duplicate\] parked\. Task {first.id} has its identity lock \(which runs, since .*\)")
    journal.let_go("order")
    journal.wait_finished(1)
    state.wait_empty()


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_on_pools_without_a_loop_of_their_own(pool: str, workers: Workers, journal: Journal, state: State) -> None:
    worker = workers.start(FEATURES, pool=pool, concurrency=1)
    app = workers.app(FEATURES)
    single = ThrottleControl(app.app).limit("single")
    single.pause(by="ana", why="their incident 42")
    parked = app.one_hold.delay("a")
    (line,) = worker.wait_for_log(rf"\[{parked.id}\] parked: .*")
    assert "place 1 in the line of single. Limit single is paused since " in line
    assert line.endswith("by ana, because: their incident 42")
    single.resume()
    worker.wait_for_log(rf"\[{parked.id}\] resumed after ")
    journal.let_go("a")
    journal.wait_finished(1)
    state.wait_empty()


@contextmanager
def explained(server: EmbeddedServer) -> Iterator[list[int]]:
    """Put into a list how often the store was asked about one task meanwhile."""
    found: list[int] = []
    with Redis(port=server.port) as client, client.monitor() as monitor:
        yield found
        client.echo("the end")
        commands = list(takewhile(lambda each: each != "ECHO the end", (each["command"] for each in monitor.listen())))
    found.append(sum(each.startswith("EVALSHA ") and " explain " in each for each in commands))


def test_a_flood_is_a_line_a_second(own_server: EmbeddedServer, workers: Workers, journal: Journal) -> None:
    worker = workers.start(FEATURES, concurrency=2)
    app = workers.app(FEATURES)
    journal.wait_begun(app.one_hold.delay("first"))
    with explained(own_server) as asked:
        for number in range(MANY):
            app.one.delay(str(number))
        until(lambda: sum(told(worker, r"Task \S+one\[\S+\] parked")) == MANY, timeout=60, describe=worker.tail)
    lines = told(worker, r"Task \S+one\[\S+\] parked")
    assert lines[0] == 1, "the first is logged at once"
    assert len(lines) < MANY / 10
    assert asked == [len(lines)]
    journal.let_go("first")
    journal.wait_finished(1 + MANY, timeout=60)
    until(lambda: sum(told(worker, r"Task \S+one\[\S+\] resumed")) == MANY, timeout=10, describe=worker.tail)
    assert len(told(worker, r"Task \S+one\[\S+\] resumed")) < MANY / 10


def test_many_slow_downs_are_one_line_a_second(workers: Workers, journal: Journal, state: State) -> None:
    worker = workers.start(LIMITED, concurrency=2)
    app = workers.app(LIMITED)
    app.call.delay("a", 0.001)
    until(lambda: len(journal.runs()) >= 40, timeout=30)
    journal.let_go("a")
    state.wait_empty()
    said = r"Task \S+call\[\S+\] is rate limited: asked too often, again in 0\.001 s"
    until(lambda: sum(told(worker, said)) == len(journal.runs()) - 1, timeout=10, describe=worker.tail)
    assert told(worker, said)[0] == 1
    assert len(told(worker, said)) < len(journal.runs()) / 3


def test_many_unparkable_tasks_are_one_line_a_second(workers: Workers, journal: Journal) -> None:
    worker = workers.start(LIMITED, concurrency=2)
    app = workers.app(LIMITED)
    journal.wait_begun(app.crowd.delay("first"))
    many = 100
    for number in range(2 + many):  # two may wait; a caller that sends by name is not stopped
        app.app.send_task(app.crowd.name, args=[str(number)])
    said = r"Task \S+crowd\[\S+\] waits here, unacknowledged: as many are parked as max_parked allows"
    until(lambda: sum(told(worker, said)) == many, timeout=30, describe=worker.tail)
    assert told(worker, said)[0] == 1
    assert len(told(worker, said)) < many / 5


def test_disabled_log_needs_no_store_call(own_server: EmbeddedServer, workers: Workers, journal: Journal) -> None:
    with Redis(port=own_server.port) as client:
        worker = workers.start(FEATURES, options=("-l", "WARNING"), wait=False)
        app = workers.app(FEATURES)
        with explained(own_server) as asked:
            journal.wait_begun(app.one_hold.delay("first"))
            app.one_hold.delay("second")
            State.at(client).wait_parked(1)
            journal.let_go("first", "second")
            journal.wait_finished(2)
    assert asked == [0]
    assert not re.search(r"INFO/|throttled|\] parked|resumed", worker.log())
