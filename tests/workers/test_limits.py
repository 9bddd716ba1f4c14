"""The declarations of users on real workers: how many at once, in which order, over which queues."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from redis import Redis

from tests.support.journal import Journal
from tests.support.looks import LOOK_EVERY
from tests.support.ports import free_port
from tests.support.state import State
from tests.support.workers import Worker, Workers
from tests.workers.conftest import FEATURES, use_filesystem_broker


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


def test_a_shared_limit_is_first_come_first_served_over_queues(
    workers: Workers, journal: Journal, state: State
) -> None:
    # More slots than the limit, so that new tasks are parked at once, in the order of publishing.
    first, second = (
        workers.start(FEATURES, concurrency=6, queues=f"celery,{queue}", wait=False) for queue in ("first", "second")
    )
    first.wait_ready()
    second.wait_ready()
    app = workers.app(FEATURES)
    for number in range(4):
        task, queue = (app.train, "first") if number % 2 else (app.predict, "second")
        task.apply_async((f"early{number}",), queue=queue)
    journal.wait_running(4)
    assert state.used == {"gpu": 4}
    labels = []
    for number in range(8):
        task, queue = (app.train, "first") if number % 3 else (app.predict, "second")
        labels.append(f"{queue}{number}")
        task.apply_async((labels[-1],), queue=queue)
        state.wait_parked(number + 1)

    for number in range(4):
        journal.let_go(f"early{number}")
        journal.wait_finished(number + 1)
        journal.wait_started(5 + number)
    for number, label in enumerate(labels[:4]):
        journal.let_go(label)
        journal.wait_started(9 + number)
    journal.let_go(*labels)
    journal.wait_finished(12)
    assert journal.order()[4:] == labels
    # Most of these permits went to the other worker, which got the hint; its own look comes much later.
    ended = sorted(run.stopped or 0.0 for run in journal.runs())
    gaps = [run.started - end for run, end in zip(journal.runs()[4:], ended, strict=False)]
    assert 0.0 <= median(gaps) < LOOK_EVERY / 2
    assert journal.max_running() == 4
    parked = {(run.label.rstrip("01234567"), run.worker.partition("@")[0]) for run in journal.runs()[4:]}
    assert parked == {("first", "w1"), ("second", "w2")}
    state.wait_empty()


def parked_for_the_second(workers: Workers, journal: Journal, state: State) -> tuple[Any, Worker]:
    """Two workers with a queue each, one task runs, one for the second is parked: the app, the second worker."""
    first, second = (workers.start(FEATURES, queues=queue, wait=False) for queue in ("first", "second"))
    first.wait_ready()
    second.wait_ready()
    app = workers.app(FEATURES)
    journal.wait_begun(app.one_hold.apply_async(("hold",), queue="first"))
    app.one.apply_async(("left behind",), queue="second")
    state.wait_parked(1)
    return app, second


def test_a_queue_without_workers_does_not_hold_up_the_others(workers: Workers, journal: Journal, state: State) -> None:
    app, second = parked_for_the_second(workers, journal, state)
    for number in range(3):
        app.one.apply_async((f"goes on{number}",), queue="first")
    state.wait_parked(4)
    second.term()
    assert second.wait() == 0
    journal.let_go("hold")
    journal.wait_finished(4)
    assert journal.order() == ["hold", "goes on0", "goes on1", "goes on2"]
    assert state.count == 1

    workers.start(FEATURES, queues="second")
    journal.wait_finished(5)
    assert journal.order()[-1] == "left behind"
    state.wait_empty()


def test_a_queue_that_is_added_to_a_running_worker(workers: Workers, journal: Journal, state: State) -> None:
    app, second = parked_for_the_second(workers, journal, state)
    second.term()
    assert second.wait() == 0
    name = journal.runs()[0].worker
    app.app.control.add_consumer("second", destination=[name], reply=True, timeout=10)
    journal.let_go("hold")
    journal.wait_finished(2)
    app.one.apply_async(("more",), queue="second")
    journal.wait_finished(3)

    app.app.control.cancel_consumer("second", destination=[name], reply=True, timeout=10)
    app.one.apply_async(("first",), queue="first")
    journal.wait_finished(4)
    state.wait_empty()


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


def test_the_newest_declaration_of_a_limit_holds(workers: Workers, journal: Journal, state: State) -> None:
    name = f"{FEATURES}.five"
    app = workers.start_app(FEATURES, concurrency=3, conf={"task_annotations": {name: {"limit": 1}}})
    for label in "abcd":
        app.five.delay(label)
    journal.wait_running(1)
    state.wait_parked(3)
    workers.start(FEATURES, concurrency=3, conf={"task_annotations": {name: {"limit": 3}}})
    journal.wait_running(3)
    assert state.used == {name: 3}
    journal.let_go(*"abcd")
    journal.wait_finished(4)
    first, *together, last = journal.order()
    assert (first, sorted(together), last) == ("a", ["b", "c"], "d")
    assert journal.max_running() == 3


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
