"""The lines of a worker's log for people: throttled tasks, parked tasks with reasons, resumed tasks."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from typing import Any
from unittest.mock import Mock

import pytest
from redis import Redis

from celery_throttle import Limit, RateLimited, StoreUnavailable, ThrottleControl, Throttled
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.testing import ThrottleTest
from celery_throttle.worker.reported.notices import Notices
from tests.support.journal import Journal
from tests.support.kit import new_app, task_maker
from tests.support.waiting import until
from tests.support.workers import Worker, Workers
from tests.workers.conftest import FEATURES

MANY, ROUNDS = 150, 40

app: Any = new_app("notices")
rounds: list[str] = []


def slow_down() -> None:
    rounds.append("")
    if len(rounds) <= ROUNDS:
        raise RateLimited(0.001)


make = partial(task_maker(app), base=Throttled)
one = make("one", limit=Limit("single", 1))
of_key = make("of_key", limit=1, key="label")
once = make("once", singleton=True)
crowd = make("crowd", limit=1, max_parked=2)
slow = make("slow", slow_down, limit=4)


@pytest.fixture
def throttle_celery_app() -> Any:
    rounds.clear()
    return app


class Log:
    """The messages of the library in this process, at INFO and above."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        caplog.set_level(logging.INFO, "celery_throttle")

    def wait_for(self, pattern: str) -> None:
        """Wait until a whole message is as in the pattern."""
        until(lambda: any(re.fullmatch(pattern, each) for each in self._caplog.messages), describe=self._text)

    def counts(self, pattern: str) -> list[int]:
        """Return the number of tasks of each message that names one and counts the others."""
        lines = [each for each in self._caplog.messages if re.match(rf"{pattern}\b", each)]
        others = (re.search(r"; and (\d+) more in the last second$", line) for line in lines)
        return [1 + (int(found[1]) if found else 0) for found in others]

    def wait_counted(self, pattern: str, tasks: int) -> list[int]:
        """Wait until messages count so many tasks; return the number of each, of which the first is one."""
        until(lambda: sum(self.counts(pattern)) == tasks, timeout=60, describe=self._text)
        assert self.counts(pattern)[0] == 1, "the first is logged at once"
        return self.counts(pattern)

    def _text(self) -> str:
        return self._caplog.text


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    """What the library logs in this process."""
    return Log(caplog)


def greeting(worker: Worker) -> str:
    (line,) = worker.wait_for_log(r"INFO/MainProcess\] celery_throttle: .*throttled.*")
    return line.partition("celery_throttle: ")[2]


# -- at the start ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_server", [{"persistent": True}], indirect=True)
def test_worker_logs_its_throttled_tasks(own_server: EmbeddedServer, workers: Workers) -> None:
    said = greeting(workers.start(FEATURES, conf={"throttle_url": f"redis://:@127.0.0.1:{own_server.port}/0"}))
    app = workers.app(FEATURES).app
    app.finalize()
    assert re.fullmatch(
        r"\d+ tasks throttled, limits gpu, single, \S+, \S+ and \S+; "
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


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_parked_and_resumed_tasks_are_logged(pool: str, workers: Workers, journal: Journal) -> None:
    """In the form of Celery's own lines. The other tests have a pool of threads."""
    worker = workers.start(FEATURES, pool=pool, concurrency=1)
    app = workers.app(FEATURES)
    single = ThrottleControl(app.app).limit("single")
    single.pause(by="ana", why="their incident 42")
    task = app.one_hold.delay("a")
    line = rf"INFO/MainProcess\] Task {FEATURES}\.one_hold\[{task.id}\] "
    parked = "parked: place 1 in the line of single. Limit single is paused since .* by ana, because: their incident 42"
    worker.wait_for_log(f"{line}{parked}$")
    single.resume()
    worker.wait_for_log(rf"{line}resumed after \d+(\.\d)? s$")
    journal.let_go("a")
    journal.wait_finished(1)


@pytest.mark.usefixtures("throttle_worker")
def test_of_which_key_and_why(throttle: ThrottleTest, log: Log) -> None:
    with throttle.gate() as gate:
        holder = of_key.delay("acme")
        of_key.delay("init")
        gate.wait_for(2)
        parked = of_key.delay("acme")
        log.wait_for(
            rf"Task notices\.of_key\[{parked.id}\] parked: place 1 in the line of notices.of_key\[acme\], "
            rf"held by {holder.id}\. Limit notices.of_key\[acme\] is full: 1 of 1 permits are held"
        )
    log.wait_for(rf"Task notices\.of_key\[{parked.id}\] resumed after \d+(\.\d)? s")


@pytest.mark.usefixtures("throttle_worker")
def test_one_that_waits_for_its_lock(throttle: ThrottleTest, log: Log) -> None:
    with throttle.gate() as gate:
        first = once.delay("order")
        gate.wait_for(1)
        second = app.send_task(once.name, ["order"])
        lock = rf"Task {first.id} has its identity lock \(which runs, since .*"
        log.wait_for(rf"Task notices\.once\[{second.id}\] parked\. {lock}")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_answers_about_a_parked_task_come_in_any_order(log: Log, order: tuple[int, int]) -> None:
    """If the server has lost its scripts, it may answer the second call first."""
    request, calls = Mock(id="a"), Mock()
    request.name = "one"
    Notices(Mock(), Mock()).parked(request, calls)
    first, last = (calls.link.send.call_args_list[each].args[1] for each in order)
    first(StoreUnavailable("away"))
    assert log.counts("Task") == []
    last(StoreUnavailable("away"))
    log.wait_for(r"Task one\[a\] parked")


# -- many at once ------------------------------------------------------------------------------------------------------


@contextmanager
def explained(server: EmbeddedServer) -> Iterator[list[int]]:
    """Put into a list how often the store was asked about one task meanwhile."""
    found: list[int] = []
    with Redis(port=server.port) as client, client.monitor() as monitor:
        yield found
        client.echo("the end")
        commands = list(takewhile(lambda each: each != "ECHO the end", (each["command"] for each in monitor.listen())))
    found.append(sum(each.startswith("EVALSHA ") and " explain " in each for each in commands))


def test_a_flood_is_a_line_a_second(own_server: EmbeddedServer, log: Log) -> None:
    with ThrottleTest(app, url=lambda: own_server.url) as throttle, throttle.run_worker():
        with throttle.gate() as gate:
            one.delay("")
            gate.wait_for(1)
            with explained(own_server) as asked:
                for _ in range(MANY):
                    one.delay("")
                counts = log.wait_counted(r"Task notices\.one\[\S+\] parked", MANY)
        assert asked == [len(counts)]
        assert len(counts) < MANY / 10
        assert len(log.wait_counted(r"Task notices\.one\[\S+\] resumed", MANY)) < MANY / 10


@pytest.mark.usefixtures("throttle_worker")
def test_many_slow_downs_are_one_line_a_second(log: Log) -> None:
    slow.delay()
    message = r"Task notices\.slow\[\S+\] is rate limited: asked too often, again in 0\.001 s"
    assert len(log.wait_counted(message, ROUNDS)) < ROUNDS / 3


@pytest.mark.usefixtures("throttle_worker")
def test_many_unparkable_tasks_are_one_line_a_second(throttle: ThrottleTest, log: Log) -> None:
    with throttle.hold(crowd):
        for _ in range(2 + MANY):  # two may wait; a caller that sends by name is not stopped
            app.send_task(crowd.name, [""])
        message = r"Task notices\.crowd\[\S+\] waits here, unacknowledged: as many are parked as max_parked allows"
        assert len(log.wait_counted(message, MANY)) < MANY / 10


def test_disabled_log_needs_no_store_call(own_server: EmbeddedServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "celery_throttle")
    with ThrottleTest(app, url=lambda: own_server.url) as throttle, throttle.run_worker(), throttle.gate() as gate:
        one.delay("")
        gate.wait_for(1)
        with explained(own_server) as asked:
            second = one.delay("")
            until(lambda: throttle.control.limit(one).status().parked == 1)
            gate.open()
            second.get(timeout=10)
    assert asked == [0]
    assert not re.search(r"INFO|throttled|\] parked|resumed", caplog.text)
