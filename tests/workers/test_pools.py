"""Every pool of Celery, with and without an event loop: the cap holds, everything runs, no slot stays idle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker

from celery_throttle import ThrottleControl, Throttled
from celery_throttle.embedded import EmbeddedServer
from tests.support.journal import Journal, peak
from tests.support.kit import task_maker
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Workers
from tests.workers.conftest import FEATURES, ONCE, use_filesystem_broker

#: Celery asks a broker that no event loop reads for messages for two seconds before it does anything else.
#: So these parked tasks would take a solo worker longer than any test waits.
COUNT = 40
# Only prefork has an event loop, and that on brokers which can be read on one.
POOLS = [
    ("prefork", "redis"),
    ("prefork", "filesystem"),
    ("threads", "redis"),
    ("solo", "redis"),
    ("gevent", "filesystem"),
]


@pytest.mark.parametrize(("pool", "broker"), POOLS)
def test_cap_over_two_workers(
    workers: Workers, journal: Journal, state: State, tmp_path: Path, pool: str, broker: str
) -> None:
    slots = 1 if pool == "solo" else 2
    workers.conf["worker_prefetch_multiplier"] = 1
    if broker == "filesystem":
        use_filesystem_broker(workers, tmp_path)
    for queue in ("first", "second"):  # on the filesystem broker they may not start at once
        workers.start(FEATURES, pool=pool, concurrency=slots, queues=f"celery,{queue}", wait=broker == "filesystem")
    for worker in workers.started:
        worker.wait_ready()
    app = workers.app(FEATURES)

    # A worker without a free slot takes no permit: the other one starts at once although the limit is 1.
    for slot in range(slots):
        app.plain_hold.apply_async((f"hold{slot}",), queue="first")
    journal.wait_running(slots)
    app.one.apply_async(("waits",), queue="first")
    app.one.apply_async(("goes",), queue="second")
    journal.wait_finished(1, "goes")
    assert not journal.runs("waits")
    journal.let_go(*(f"hold{slot}" for slot in range(slots)))
    journal.wait_finished(1, "waits")

    # Early and late acknowledgement share one permit; plain tasks go on beside them.
    each = 3 if pool == "solo" else 6
    for number in range(each):
        app.one.delay(f"early{number}", 0.05)
        app.one_late.delay(f"late{number}", 0.05)
        app.plain.delay(f"plain{number}")
    journal.wait_finished(each, task="features.one_late")
    journal.wait_finished(each + 2, task="features.one")
    journal.wait_finished(each, task="features.plain")
    assert peak(run for run in journal.runs() if run.task.startswith("tests.support.apps.features.one")) == 1
    state.wait_empty()

    # The limit is 5, but there are fewer slots: every slot works, and no permit waits for one.
    labels = [f"five{number}" for number in range(8)]
    for label in labels:
        app.five.delay(label)
    journal.wait_running(2 * slots)
    assert state.used == {app.five.name: 2 * slots}
    journal.let_go(*labels)
    journal.wait_finished(8, task="features.five")
    assert len(journal.runs()) == slots + 2 + 3 * each + 8, "something ran twice"

    # Bodies that end before the hub has acknowledged their messages, parked ones and others.
    for number in range(20 * slots):
        app.one.delay(f"short{number}", 0)
        app.five.delay(f"short five{number}", 0)
    journal.let_go(*(f"short five{number}" for number in range(20 * slots)))
    journal.wait_finished(2 + each + 20 * slots, task="features.one")
    journal.wait_finished(8 + 20 * slots, task="features.five")
    state.wait_gone()


def test_a_long_task_of_a_solo_worker_keeps_its_lease(workers: Workers, journal: Journal, state: State) -> None:
    workers.conf["throttle_lease"] = 1.0
    first = workers.start(FEATURES, pool="solo", queues="first")
    workers.start(FEATURES, pool="solo", queues="second")
    app = workers.app(FEATURES)
    held = journal.wait_begun(app.one_hold.apply_async(("long",), queue="first"))
    app.one.apply_async(("next",), queue="second")
    state.wait_parked(1)

    begin = state.lease_end(held.id)
    until(lambda: state.lease_end(held.id) > begin + 2.0, describe="The lease was not renewed.")
    assert sorted(state.holders) == [held.id]
    assert not journal.runs("next")
    journal.let_go("long")
    journal.wait_finished(1, "next")
    assert journal.max_running() == 1
    assert "lease_lost" not in first.log()


@pytest.mark.parametrize(("pool", "broker"), [("prefork", "redis"), ("prefork", "filesystem"), ("gevent", "redis")])
def test_autoscale_counts_parked_tasks(
    workers: Workers, journal: Journal, state: State, tmp_path: Path, broker: str, pool: str
) -> None:
    """The worker has none of it when the permits come."""
    if broker == "filesystem":
        use_filesystem_broker(workers, tmp_path)
    workers.start(FEATURES, concurrency=4, queues="other")
    app = workers.start_app(FEATURES, pool=pool, options=["--autoscale", "4,1"])
    for number in range(4):
        app.train.apply_async((f"other{number}",), queue="other")
    journal.wait_running(4)
    labels = [f"train{number}" for number in range(6)]
    for number, label in enumerate(labels):
        app.train.delay(label)
        state.wait_parked(number + 1)  # one by one: it counts those that arrive together

    journal.let_go(*(f"other{number}" for number in range(4)))

    journal.wait_finished(4)
    journal.wait_running(4)  # each slot that comes is used
    assert state.used == {"gpu": 4}
    journal.let_go(*labels)
    journal.wait_finished(10)
    assert journal.max_running() == 4
    state.wait_empty()


def test_the_autoscaler_learns_of_resumed_tasks(workers: Workers, journal: Journal, state: State) -> None:
    """Else Celery 5.7 takes processes from a pool that works off a line, because none of these tasks is received."""
    conf = {"worker_autoscaler": f"{FEATURES}:LoggedAutoscaler"}
    worker = workers.start(FEATURES, options=["--autoscale", "4,1"], conf=conf)
    app = workers.app(FEATURES)
    app.one_hold.delay("first")
    journal.wait_running(1)
    second = app.one_hold.delay("second")
    state.wait_parked(1)
    before = worker.log().count(f"autoscaler: {second.id}")
    journal.let_go("first", "second")
    journal.wait_finished(2)
    assert worker.log().count(f"autoscaler: {second.id}") == before + 1
    state.wait_empty()


def test_options_of_celery_work_with_ours(workers: Workers, journal: Journal, state: State) -> None:
    """Its local rate limit, a countdown, and children of the pool that are replaced."""
    app = workers.start_app(FEATURES, concurrency=4, options=["--max-tasks-per-child", "1"])
    for number in range(6):
        app.rated.delay(f"rated{number}")
        app.one.apply_async((f"later{number}", 0.05), countdown=0.5)
    journal.wait_finished(6, task="features.one")
    journal.wait_finished(6, task="features.rated")
    assert journal.max_running(task="features.one") == 1
    assert journal.max_running(task="features.rated") <= 2
    assert sorted(journal.order(task="features.rated")) == [f"rated{number}" for number in range(6)]
    assert all(run.attempt == 0 for run in journal.runs())
    assert len({run.pid for run in journal.runs()}) == 12, "a child ran more than one task"
    state.wait_empty()


def test_solo_without_an_event_loop_alternates_parked_tasks_with_messages(
    workers: Workers, journal: Journal, state: State, tmp_path: Path
) -> None:
    """There Celery's timer is a thread, and tasks still run in the one that consumes, one by one."""
    use_filesystem_broker(workers, tmp_path)
    worker = workers.start(FEATURES, pool="solo", concurrency=1)
    app = workers.app(FEATURES)
    for name in ("plain", "one"):
        for number in range(2):
            getattr(app, name).apply_async((f"{name} {number}", 0.5), countdown=1, ignore_result=True)
    journal.wait_finished(4)

    control = ThrottleControl(app.app).limit("single")
    control.pause()
    for number in range(COUNT):
        app.one.delay(f"parked {number}")
    state.wait_parked(COUNT)
    journal.wait_begun(app.plain_hold.delay("hold"))
    control.resume()
    for number in range(3):
        app.plain.delay(f"later {number}")

    journal.let_go("hold")

    journal.wait_finished(4 + 1 + COUNT + 3)
    order = journal.order()
    assert [label for label in order if label.startswith("parked")] == [f"parked {number}" for number in range(COUNT)]
    assert order.index("later 2") < order.index(f"parked {COUNT - 1}")
    assert journal.max_running() == 1
    assert worker.running
    assert "CRITICAL/" not in worker.log()
    state.wait_empty()


@pytest.mark.usefixtures("log_as_before")
def test_solo_worker_of_a_test_suite_runs_parked_tasks_at_once(server: EmbeddedServer, state: State) -> None:
    app: Any = Celery("suite", broker="memory://", set_as_current=False)
    app.conf.update(throttle_url=server.url, worker_hijack_root_logger=False, result_backend="cache+memory://")
    one = task_maker(app)("one", base=Throttled, limit=1)
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=20):
        one.delay("first").get(timeout=HANGS_AFTER)
        limit = ThrottleControl(app).limit(one)
        limit.pause()
        results = [one.delay(str(number)) for number in range(COUNT)]
        state.wait_parked(COUNT)
        limit.resume()
        assert results[-1].get(timeout=HANGS_AFTER) == str(COUNT - 1)
        assert [result.get(timeout=HANGS_AFTER) for result in results] == [str(number) for number in range(COUNT)]


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_run_that_was_terminated_is_not_remembered(
    workers: Workers, journal: Journal, state: State, pool: str
) -> None:
    app = workers.start_app(ONCE, pool=pool, concurrency=2)
    first = journal.wait_begun(app.hold_remembered.delay("order 1"))
    app.app.control.revoke(first.id, terminate=True)
    until(lambda: app.hold_remembered.locked_by("order 1") is None)
    journal.let_go("order 1")
    assert app.hold_remembered.delay("order 1").get(timeout=HANGS_AFTER) == "order 1"
    state.wait_empty()
