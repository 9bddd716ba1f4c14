"""RabbitMQ as the broker, Redis as the store: one node of the tests' own, and real workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import VERSION

from celery_throttle import ConfigurationError, ThrottleControl
from celery_throttle.embedded import EmbeddedServer
from tests.conftest import new_server
from tests.control.conftest import make_app
from tests.failures.tools import DIES, DOORS, SEAMS, counts
from tests.support.journal import Journal
from tests.support.rabbits import Rabbit, find_rabbitmq
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import BASIC, Workers

CLASSIC, QUORUM = "celery", "quorum"
QUEUES = [
    CLASSIC,
    pytest.param(
        QUORUM,
        marks=pytest.mark.skipif(
            (VERSION.major, VERSION.minor) < (5, 5), reason="Celery 5.4 asks of a quorum queue what it does not have"
        ),
    ),
]

pytestmark = pytest.mark.skipif(find_rabbitmq() is None, reason="RabbitMQ is not installed (Debian: rabbitmq-server)")


@pytest.fixture(scope="module")
def node() -> Iterator[Rabbit]:
    script = find_rabbitmq()
    assert script
    with Rabbit(script) as running:
        yield running


@pytest.fixture
def rabbit(node: Rabbit, workers: Workers, server: EmbeddedServer) -> Iterator[Rabbit]:
    """The workers' broker, with nothing in its queues; their store is Redis."""
    workers.conf.update(throttle_url=server.url, worker_prefetch_multiplier=1)
    workers.broker = node.url
    yield node
    workers.end()
    node.forget(CLASSIC, QUORUM, "alpha", "media")


@pytest.fixture
def queue(request: pytest.FixtureRequest, workers: Workers) -> str:
    """The only queue, of this kind."""
    name: str = request.param
    if name == QUORUM:
        # Of type topic, so that Celery's delayed delivery can use it.
        workers.conf.update(
            task_default_queue=QUORUM, task_default_queue_type="quorum", task_default_exchange_type="topic"
        )
    return name


@pytest.fixture
def own_store(workers: Workers, rabbit: Rabbit) -> Iterator[EmbeddedServer]:
    """A store of the test's own, to kill; the results are elsewhere."""
    assert workers.broker == rabbit.url
    with new_server(persistent=True) as running:
        workers.conf["throttle_url"] = running.url
        yield running
        workers.end()


@pytest.fixture
def state(server: EmbeddedServer) -> State:
    return State(lambda: server.url)


@pytest.mark.parametrize("queue", QUEUES, indirect=True)
def test_a_cap_over_two_workers(rabbit: Rabbit, workers: Workers, journal: Journal, state: State, queue: str) -> None:
    """At once, and with a countdown, which a quorum queue leaves to RabbitMQ."""
    app = workers.start_app(BASIC, count=2, concurrency=3, queues=queue)
    assert ("x-queue-type" in (app.app.amqp.queues[queue].queue_arguments or {})) == (queue == QUORUM)
    labels = [str(number) for number in range(20)]
    results = [app.work.apply_async((label, 0.05), countdown=int(label) % 2) for label in labels]
    assert [result.get(timeout=HANGS_AFTER) for result in results] == labels
    assert journal.max_running() == 2
    assert len(journal.runs()) == 20
    state.wait_clean()
    assert rabbit.waiting(queue) == 0


@pytest.mark.parametrize("queue", QUEUES, indirect=True)
def test_a_killed_worker(rabbit: Rabbit, workers: Workers, journal: Journal, state: State, queue: str) -> None:
    """RabbitMQ delivers again at once, while the lease still runs; the second delivery waits for its end."""
    lost = workers.start(DOORS, queues=queue, conf=DIES)
    app = workers.app(DOORS)
    journal.wait_begun(app.hold_late.delay("first"))
    second = app.hold_late.delay("second")
    state.wait_parked(second)
    workers.start(DOORS, queues=queue)

    lost.kill()
    journal.wait_started(2)
    journal.let_all_go()
    journal.wait_finished(2)
    assert counts(journal) == {"first": 2, "second": 1}
    assert journal.max_running() == 1
    state.wait_clean()
    assert rabbit.waiting(queue) == 0


@pytest.mark.parametrize("queue", QUEUES, indirect=True)
def test_prefetch(rabbit: Rabbit, workers: Workers, journal: Journal, state: State, queue: str) -> None:
    """A line does not use up the prefetch count of a worker, which is the same afterwards."""
    app = workers.start_app(DOORS, queues=queue, concurrency=2)
    assert prefetched(app) == {2}
    held = [app.hold.apply_async([f"held {number}"], countdown=number % 2) for number in range(12)]
    journal.wait_running(1)
    until(lambda: len(state.parked) == 11, describe=state.describe)
    journal.wait_begun(app.plain.delay("plain"))

    journal.let_all_go()
    assert len([result.get(timeout=HANGS_AFTER) for result in held]) == 12
    assert journal.max_running(task=".hold") == 1
    until(lambda: prefetched(app) == {2})
    state.wait_clean()
    assert rabbit.waiting(queue) == 0


@pytest.mark.usefixtures("rabbit")
def test_a_queue_bound_with_a_pattern(workers: Workers, journal: Journal, state: State) -> None:
    """The route of the message does not name it."""
    app = workers.start_app(SEAMS, queues="alpha,media")
    journal.wait_begun(app.one.apply_async(["first"], queue="alpha"))
    state.wait_parked(app.one.apply_async(["video"], exchange="media", routing_key="media.video.short"))
    assert {each.queue for each in state.lines} == {"media"}
    journal.let_all_go()
    journal.wait_finished(2)
    state.wait_clean()


def test_the_store_is_away(rabbit: Rabbit, workers: Workers, journal: Journal, own_store: EmbeddedServer) -> None:
    """Messages that wait for it do not count as prefetched, so plain tasks of the same (classic) queue go on."""
    worker = workers.start(DOORS, concurrency=1)
    app = workers.app(DOORS)
    own_store.kill()
    worker.wait_for_log("cannot reach the store")
    held = [app.hold.delay(f"held {number}") for number in range(8)]
    journal.wait_begun(app.plain.delay("plain"))
    assert len(journal.runs()) == 1

    own_store.restart()
    journal.let_all_go()
    assert len([result.get(timeout=HANGS_AFTER) for result in held]) == 8
    assert journal.max_running(task=".hold") == 1
    until(lambda: prefetched(app) == {1})
    assert rabbit.waiting(CLASSIC) == 0


def prefetched(app: Any) -> set[int]:
    """How many messages each worker that answers lets the broker deliver."""
    found = app.app.control.inspect(timeout=2, limit=1).stats() or {}
    return {int(each["prefetch_count"]) for each in found.values()}


def test_the_messages_of_its_queues_are_work(node: Rabbit, server: EmbeddedServer, redis: object) -> None:
    assert redis  # which empties the store
    app = make_app(server.url, throttle_url=server.url, broker_url=node.url)
    for _ in range(3):
        app.send_task("call", queue="alpha")
    with app.connection_for_write() as connection:
        app.amqp.queues["media"](connection.default_channel).declare()
    elsewhere = make_app(server.url, throttle_url=server.url, broker_url=node.url, task_routes={"call": "none"})
    found = {each.queue: each.messages for each in ThrottleControl(elsewhere).runnable("media", "alpha", "none")}
    with pytest.raises(ConfigurationError, match="No queue '_missing'"):
        ThrottleControl(elsewhere).runnable("_missing", "alpha")
    node.forget("alpha", "media")
    assert found == {"media": 0, "alpha": 3, "none": 0}
