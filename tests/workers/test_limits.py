"""The declarations of users on real workers: how many at once, in which order, over which queues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from celery_throttle import Limit, Throttled
from celery_throttle.testing import ThrottleTest
from tests.support.journal import Journal
from tests.support.kit import new_app, task_maker
from tests.support.ports import free_port
from tests.support.state import State
from tests.support.workers import Workers
from tests.workers.conftest import FEATURES, use_filesystem_broker

app: Any = new_app("limits")
gpu = Limit("gpu", 2)
make = task_maker(app)
train, predict = (make(name, base=Throttled, limit=gpu) for name in ("train", "predict"))


@pytest.fixture
def throttle_celery_app(hints_only: None) -> Any:  # noqa: ARG001
    return app


def test_a_limit_over_two_workers(workers: Workers, journal: Journal, state: State) -> None:
    # Each has a slot more than the limit has permits, and none takes all the tasks.
    queues = ("first", "second")
    for worker in [workers.start(FEATURES, concurrency=6, queues=f"celery,{name}", wait=False) for name in queues]:
        worker.wait_ready()
    app = workers.app(FEATURES)
    labels = [f"five{number}" for number in range(12)]
    for number, label in enumerate(labels):
        app.five.apply_async((label,), queue=queues[number % 2])
    journal.wait_running(5)
    state.wait_parked(7)
    assert state.used == {app.five.name: 5}
    app.plain.delay("meanwhile")
    journal.wait_finished(1, "meanwhile")
    # One ends, one starts: never more, never fewer.
    for ended in range(1, 8):
        journal.let_go(next(run.label for run in journal.running()))
        journal.wait_finished(ended, task="features.five")
        journal.wait_running(5)
    journal.let_go(*labels)
    journal.wait_finished(13)
    assert journal.max_running(task="features.five") == 5
    assert len(journal.runs()) == 13
    assert len({run.worker for run in journal.runs()}) == 2
    state.wait_empty()


def test_a_shared_limit_is_first_come_first_served_over_queues(throttle: ThrottleTest) -> None:
    """Each start is in the other worker than the end before, so that worker gets a hint."""
    with throttle.run_worker(queues=["first"]), throttle.run_worker(queues=["second"]):
        with throttle.gate() as gate:
            for place, queue in enumerate(["first", "second"]):
                train.apply_async(("",), queue=queue)
                gate.wait_for(place + 1)
            line: list[Any] = []
            for place, queue in enumerate(["second", "first", "first", "second", "second", "first"]):
                line.append((train, predict)[place % 2].apply_async(("",), queue=queue))
                throttle.assert_line(gpu, line)
            while line:
                gate.open(1)
                throttle.assert_started(line.pop(0))
                throttle.assert_line(gpu, line)
        throttle.drain()
        throttle.assert_most_at_once(gpu, 2)


def test_a_queue_without_workers_does_not_hold_up_the_others(throttle: ThrottleTest) -> None:
    with throttle.run_worker(queues=["first"]):
        with throttle.hold(gpu), throttle.run_worker(queues=["second"]):
            line = [train.apply_async(("",), queue="second")]
            throttle.assert_line(gpu, line)
            line += [train.apply_async(("",), queue="first") for _ in range(3)]
            throttle.assert_line(gpu, line)
        line.append(train.apply_async(("",), queue="first"))  # its worker asks, and hears when to look again
        left, *others = line
        for each in others:
            throttle.assert_started(each)
        throttle.assert_line(gpu, [left])
        with throttle.run_worker(queues=["second"]):
            throttle.assert_started(left)


def test_a_queue_that_is_added_to_a_running_worker(throttle: ThrottleTest) -> None:
    with throttle.run_worker(queues=["first"]) as worker:
        with throttle.hold(gpu):
            with throttle.run_worker(queues=["second"]):
                left = train.apply_async(("",), queue="second")
                throttle.assert_parked(left)
            app.control.add_consumer("second", destination=[worker.node], reply=True, timeout=10)
        throttle.assert_started(left)
        throttle.assert_started(train.apply_async(("",), queue="second"))

        app.control.cancel_consumer("second", destination=[worker.node], reply=True, timeout=10)
        throttle.assert_started(train.apply_async(("",), queue="first"))


def test_two_prefixes_have_nothing_in_common(workers: Workers, journal: Journal, redis: Redis) -> None:
    workers.start(FEATURES, queues="ours", wait=False)
    workers.start(FEATURES, queues="theirs", conf={"throttle_prefix": "other:app"}, wait=False)
    for worker in workers.started:
        worker.wait_ready()
    app = workers.app(FEATURES)
    app.one_hold.apply_async(("ours",), queue="ours")
    app.one_hold.apply_async(("theirs",), queue="theirs")
    journal.wait_running(2)
    assert State.at(redis).used == State.at(redis, "other:app").used == {"single": 1}
    app.one.apply_async(("second of theirs",), queue="theirs")
    State.at(redis, "other:app").wait_parked(1)
    assert State.at(redis).count == 0
    journal.let_go("ours", "theirs")
    journal.wait_finished(3)
    State.at(redis).wait_empty()
    State.at(redis, "other:app").wait_empty()


def test_throttling_can_be_turned_off(workers: Workers, journal: Journal, redis: Redis) -> None:
    worker = workers.start(FEATURES, concurrency=3, conf={"throttle_enabled": False})
    app = workers.app(FEATURES)
    for label in "abc":
        app.one_hold.delay(label)
    journal.wait_running(3)
    assert not redis.keys("*throttle*")
    journal.let_go(*"abc")
    journal.wait_finished(3)
    assert "without limits, rates and identity locks" in worker.log()


def test_parked_tasks_run_when_throttling_is_turned_off(workers: Workers, journal: Journal, state: State) -> None:
    before = workers.start(FEATURES, concurrency=3)
    app = workers.app(FEATURES)
    journal.wait_begun(app.one_hold.delay("first"))
    for label in ("parked", "parked too"):
        app.one_hold.delay(label)
    state.wait_parked(2)
    before.term()
    journal.let_go("first")
    before.wait()

    after = workers.start(FEATURES, concurrency=4, conf={"throttle_enabled": False})

    after.wait_for_log(r"WARNING.* 2 tasks are parked: .*disable\(\)")
    journal.wait_running(1, "parked")
    for number in range(2):
        app.one_hold.delay(f"new {number}")
    journal.wait_running(3)
    assert not journal.runs("parked too"), "a parked task keeps its limit"
    journal.let_go("parked", "parked too", "new 0", "new 1")
    journal.wait_finished(5)
    assert len(journal.runs()) == 5
    state.wait_empty()


def test_turned_off_without_a_store(workers: Workers, journal: Journal) -> None:
    worker = workers.start(
        FEATURES, conf={"throttle_enabled": False, "throttle_url": f"redis://127.0.0.1:{free_port()}"}
    )
    worker.wait_for_log("WARNING.*whether tasks are still parked cannot be seen")
    journal.let_go("a")
    workers.app(FEATURES).one_hold.delay("a")
    journal.wait_finished(1)


def test_result_backend_is_the_store_without_a_redis_broker(
    workers: Workers, journal: Journal, redis: Redis, tmp_path: Path
) -> None:
    use_filesystem_broker(workers, tmp_path)
    del workers.conf["throttle_url"]
    app = workers.start_app(FEATURES)
    for label in ("a", "b"):
        app.one_hold.delay(label)
    journal.wait_running(1)
    with Redis.from_url(workers.backend) as backend:
        State.at(backend).wait_parked(1)
    assert redis.dbsize() == 0
    journal.let_go("a", "b")
    journal.wait_finished(2)
    assert journal.max_running() == 1


def test_no_redis_anywhere_stops_the_worker(workers: Workers, tmp_path: Path) -> None:
    use_filesystem_broker(workers, tmp_path)
    del workers.conf["throttle_url"]
    workers.backend = "cache+memory://"
    worker = workers.start(FEATURES, wait=False)
    assert worker.wait() != 0
    last = worker.log().splitlines()[-1]
    assert last.startswith("Error: ")
    assert "throttle_url" in last


def test_workers_started_as_most_are_started(workers: Workers, journal: Journal, state: State) -> None:
    """With mingle and gossip, which the other tests leave out."""
    for _ in range(2):
        workers.start(FEATURES, concurrency=4, quick=False)
    app = workers.app(FEATURES)
    for label in ("a", "b"):
        app.five.delay(label)
    journal.wait_running(2)
    journal.let_go("a", "b")
    journal.wait_finished(2)
    state.wait_empty()
    assert all(worker.running for worker in workers.started)
