"""Two services on one store, each with a broker of its own; and workers of one queue that know different tasks."""

from __future__ import annotations

from typing import Any

import pytest

from celery_throttle import ThrottleControl
from celery_throttle.control.checks import diagnose
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import BASIC, Workers

OTHER = "tests.support.apps.limited"


@pytest.fixture
def other_broker(workers: Workers) -> dict[str, str]:
    """The environment of the second service, whose broker is another database of the same server."""
    workers.conf["throttle_url"] = workers.broker
    return {"BROKER_URL": workers.broker.removesuffix("/0") + "/7"}


def park_three(workers: Workers, journal: Journal, state: State) -> list[Any]:
    """Have a worker run one task, park three and stop; return the results."""
    app = workers.app(BASIC)
    results = [app.one.delay(f"t{number}", 1) for number in range(4)]
    first = workers.start(BASIC, concurrency=1)
    state.wait_parked(3)
    first.term()
    first.wait()
    assert len(journal.finished()) == 1
    return results


def test_two_services_with_both_workers_up_lose_nothing(
    workers: Workers, journal: Journal, state: State, other_broker: dict[str, str]
) -> None:
    app = workers.start_app(BASIC, concurrency=1)
    other = workers.start(OTHER, env=other_broker, concurrency=4)
    for number in range(5):
        app.one.delay(f"t{number}", 0.2)
        app.plain.delay(f"p{number}", 0.2)  # takes the one slot, so that others are asked to start a parked task
    journal.wait_finished(10)
    state.wait_empty()
    assert "registers" not in other.log()


def test_a_parked_task_waits_for_a_worker_of_its_own_broker(
    workers: Workers, journal: Journal, state: State, other_broker: dict[str, str]
) -> None:
    waits = park_three(workers, journal, state)
    other = workers.start(OTHER, env=other_broker, concurrency=4)
    brokers = [workers.broker, other_broker["BROKER_URL"]]
    workers.env |= other_broker
    app = workers.app(OTHER)
    workers.env.clear()
    journal.let_go("a", "b", "c")
    for label in ("a", "b", "c"):
        app.call.delay(label)
    journal.wait_finished(3, task="call")
    assert "registers" not in other.log()
    assert state.count == 3

    throttle = ThrottleControl(app.app)
    (why,) = [each for each in throttle.explain(waits[-1].id).reasons if "broker" in each]
    assert "redis://" in why
    (row,) = throttle.drain(dry_run=True)
    assert (row.queue, row.tasks, row.elsewhere) == ("celery", 0, 3)
    assert throttle.drain()[0].tasks == 0
    assert {each.queue: each.ready for each in throttle.runnable("celery")} == {"celery": 0}
    found = diagnose(app.app)
    assert sorted((each.broker, each.workers) for each in found.services) == [
        (broker.replace("127.0.0.1", "localhost"), count) for count, broker in enumerate(brokers)
    ]
    assert "no-worker" not in [each.kind for each in throttle.report().alarms]

    workers.start(BASIC, concurrency=1)
    journal.wait_finished(4, task="one")
    state.wait_empty()


def test_one_name_for_two_urls_of_a_broker_is_one_service(workers: Workers, journal: Journal, state: State) -> None:
    workers.conf["throttle_broker"] = "orders"
    park_three(workers, journal, state)
    workers.conf["throttle_url"] = workers.broker
    workers.broker = workers.broker.replace("127.0.0.1", "localhost")
    workers.start(BASIC, concurrency=1)
    journal.wait_finished(4)
    state.wait_empty()


def test_parked_task_waits_for_a_worker_that_has_it(workers: Workers, journal: Journal, state: State) -> None:
    results = park_three(workers, journal, state)
    other = workers.start(OTHER, concurrency=2)
    other.wait_for_log(r"Parked task \S+ is '\S+one', which no module of this worker registers", times=2)
    state.wait_parked(3)  # a task that the worker gives back right now is held for a moment
    assert {result.state for result in results[1:]} == {"PENDING"}
    workers.start(BASIC, concurrency=1)
    journal.wait_finished(4)
    until(lambda: {result.state for result in results} == {"SUCCESS"})
    state.wait_empty()
