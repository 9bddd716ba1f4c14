"""Many that wait cost little: in a process, outside of tasks, and in a worker whose tasks may not be parked."""

from __future__ import annotations

import gc
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from celery import VERSION, Celery
from redis import Redis

from celery_throttle import Limit, NotAcquired, ThrottleControl
from celery_throttle.embedded import EmbeddedServer
from tests.failures.tools import DOORS, SEAMS, queued, script_calls, unacknowledged
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, always, until
from tests.support.workers import Workers, close

THREADS = 60


@pytest.fixture
def app(server: EmbeddedServer, redis: Redis) -> Iterator[Any]:
    """An app whose store is the test's server."""
    assert redis.ping()
    made = Celery("outside", broker=server.url, set_as_current=False)
    yield made
    close(made)


def connections(redis: Redis) -> int:
    """How many the server has; those of other tests' apps are closed when they are collected."""
    gc.collect()
    clients: Any = redis.info("clients")
    return int(clients["connected_clients"])


def test_many_threads_that_wait_for_a_rate(app: Any, redis: Redis) -> None:
    """One gets its start every second; the others wait together, not each by itself."""
    mail, done = Limit("mail", rate="1/s"), threading.Event()

    def wait() -> None:
        with suppress(NotAcquired), mail.acquire(HANGS_AFTER, app=app):
            done.wait(HANGS_AFTER)

    before, connected = threading.active_count(), connections(redis)
    control = ThrottleControl(app).limit(mail)
    control.pause()
    with ThreadPoolExecutor(THREADS) as pool:
        waiting = [pool.submit(wait) for _ in range(THREADS)]
        until(lambda: control.status().parked == THREADS)
        control.resume()
        began, calls, active = time.monotonic(), script_calls(redis), [0]

        def waited() -> bool:
            active.append(threading.active_count())
            return time.monotonic() > began + 3

        until(waited)
        a_second = (script_calls(redis) - calls) / (time.monotonic() - began)
        most, connected = max(active) - before - THREADS, connections(redis) - connected
        done.set()
        control.disable()
    for each in waiting:
        each.result()
    # Those that hold are renewed by a thread each.
    assert (a_second <= 15, most <= 15, connected <= 15) == (True, True, True), (
        f"{a_second:.0f} calls a second, {most} threads more than {THREADS}, {connected} connections"
    )


def test_waiting_tasks_cost_next_to_no_commands(redis: Redis, workers: Workers, journal: Journal, state: State) -> None:
    started = workers.start_many(2, DOORS, concurrency=2)
    app = workers.app(DOORS)
    journal.wait_begun(app.hold.delay("first"))

    def told() -> int:
        logs = "\n".join(worker.log() for worker in started)
        lines = re.findall(r"\] parked\b.*?(?:; and (\d+) more in the last second)?$", logs, re.MULTILINE)
        return sum(1 + int(others or 0) for others in lines)

    began = script_calls(redis)
    for number in range(200):
        app.hold.delay(f"parked {number}")
    until(lambda: len(state.parked) == 200)
    # A constant number for each task that came by (park, perhaps ask before) ...
    assert script_calls(redis) - began <= 200 * 3 + 50
    until(lambda: told() == 200)  # each second with parked tasks asks the store about one
    # ... and then silence, but for a look every five seconds.
    settled = script_calls(redis)
    always(lambda: script_calls(redis) <= settled + 5, seconds=2, every=0.2)

    journal.let_all_go()
    journal.wait_finished(201)
    assert script_calls(redis) - began <= 200 * 6 + 50
    state.wait_clean()
    history = ThrottleControl(app.app).limit(app.hold).history
    until(lambda: history().total.ended >= 50)  # counts are sent ten seconds after the first


@pytest.mark.parametrize("conf", [{}, {"worker_eta_task_limit": 10}], ids=["as it is", "few tasks with an ETA"])
def test_worker_without_store_leaves_a_long_queue_alone(
    store: EmbeddedServer, workers: Workers, conf: dict[str, int]
) -> None:
    worker = workers.start(SEAMS, concurrency=2, conf={"worker_prefetch_multiplier": 2, **conf})
    app = workers.app(SEAMS)
    store.kill()
    worker.wait_for_log("cannot reach the store")
    with app.app.producer_pool.acquire() as producer:
        for number in range(1200):
            app.app.send_task(app.one.name, [str(number)], producer=producer, ignore_result=True)
    until(lambda: len(unacknowledged(workers)) == 1004)
    always(lambda: len(unacknowledged(workers)) == 1004 and queued(workers) == 196, seconds=0.5)


@pytest.mark.skipif((VERSION.major, VERSION.minor) < (5, 6), reason="a setting of Celery 5.6")
@pytest.mark.parametrize("why", ["max_parked", "store away"])
def test_held_tasks_without_prefetching_block_no_slot(
    store: EmbeddedServer, workers: Workers, journal: Journal, state: State, why: str
) -> None:
    workers.conf["worker_disable_prefetch"] = True
    worker = workers.start(SEAMS, concurrency=2)
    app = workers.app(SEAMS)
    if why == "max_parked":
        journal.wait_begun(app.crowded.apply_async(("first",), ignore_result=True))
        for number in range(3):
            app.app.send_task(app.crowded.name, [str(number)], ignore_result=True)
        until(lambda: len(unacknowledged(workers)) == 1 and len(state.parked) == 2)
    else:
        store.kill()
        worker.wait_for_log("cannot reach the store")
        for number in range(2):
            app.one.apply_async((str(number),), ignore_result=True)
    journal.wait_begun(app.plain.apply_async(("plain",), ignore_result=True))
