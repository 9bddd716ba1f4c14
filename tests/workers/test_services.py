"""Two services on one store, each with a broker of its own; and workers of one queue that know different tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from celery_throttle import ThrottleControl
from celery_throttle.control.checks import diagnose
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import BASIC, Worker, Workers

T = TypeVar("T")
OTHER = "tests.support.apps.limited"


class Services:
    """A service of `BASIC`, and one of `OTHER` whose broker is another database of the same server."""

    def __init__(self, workers: Workers) -> None:
        self._workers, self._first = workers, workers.broker
        self._second = workers.broker.removesuffix("/0") + "/7"
        workers.conf["throttle_url"] = workers.broker
        self.app = workers.app(BASIC)
        self.other = self._with_second(lambda: workers.app(OTHER))

    def _with_second(self, make: Callable[[], T]) -> T:
        self._workers.broker = self._second
        try:
            return make()
        finally:
            self._workers.broker = self._first

    def start(self, **how: Any) -> Worker:
        return self._workers.start(BASIC, **how)

    def start_other(self, **how: Any) -> Worker:
        return self._with_second(lambda: self._workers.start(OTHER, **how))


@pytest.fixture
def services(workers: Workers) -> Services:
    return Services(workers)


def test_two_services_with_both_workers_up_lose_nothing(services: Services, journal: Journal, state: State) -> None:
    services.start(concurrency=1)
    other = services.start_other(concurrency=4)
    for number in range(5):
        services.app.one.delay(f"t{number}", 0.2)
        services.app.plain.delay(
            f"p{number}", 0.2
        )  # takes the one slot, so that others are asked to start a parked task
    journal.wait_finished(10)
    state.wait_empty()
    assert "registers" not in other.log()


def test_a_parked_task_waits_for_a_worker_of_its_own_broker(services: Services, journal: Journal, state: State) -> None:
    waits = [services.app.one.delay(f"t{number}", 1) for number in range(4)]
    first = services.start(concurrency=1)
    state.wait_parked(3)
    first.term()
    first.wait()
    other = services.start_other(concurrency=4)
    journal.let_go("a", "b", "c")
    for label in ("a", "b", "c"):
        services.other.call.delay(label)
    journal.wait_finished(3, task="call")
    assert "registers" not in other.log()
    assert state.count == 3

    throttle = ThrottleControl(services.other.app)
    (why,) = [each for each in throttle.explain(waits[-1].id).reasons if "broker" in each]
    assert "redis://" in why
    (row,) = throttle.drain(dry_run=True)
    assert (row.queue, row.tasks, row.elsewhere) == ("celery", 0, 3)
    assert throttle.drain()[0].tasks == 0
    assert {each.queue: each.ready for each in throttle.runnable("celery")} == {"celery": 0}
    found = diagnose(services.other.app)
    assert sorted((each.broker, each.workers) for each in found.services) == [
        (services.app.app.conf.broker_url.replace("127.0.0.1", "localhost"), 0),
        (services.other.app.conf.broker_url.replace("127.0.0.1", "localhost"), 1),
    ]
    assert "no-worker" not in [each.kind for each in throttle.report().alarms]

    services.start(concurrency=1)
    journal.wait_finished(4, task="one")
    state.wait_empty()


def test_one_name_for_two_urls_of_a_broker_is_one_service(workers: Workers, journal: Journal, state: State) -> None:
    workers.conf["throttle_broker"] = "orders"
    app = workers.app(BASIC)
    for number in range(4):
        app.one.delay(f"t{number}", 1)
    first = workers.start(BASIC, concurrency=1)
    state.wait_parked(3)
    first.term()
    first.wait()
    workers.conf["throttle_url"] = workers.broker
    workers.broker = workers.broker.replace("127.0.0.1", "localhost")
    workers.start(BASIC, concurrency=1)
    journal.wait_finished(4)
    state.wait_empty()


def test_parked_task_waits_for_a_worker_that_has_it(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.app(BASIC)
    results = [app.one.delay(f"t{number}", 1) for number in range(4)]
    first = workers.start(BASIC, concurrency=1)
    state.wait_parked(3)
    first.term()
    first.wait()
    other = workers.start(OTHER, concurrency=2)
    other.wait_for_log(r"Parked task \S+ is '\S+one', which no module of this worker registers", times=2)
    state.wait_parked(3)  # a task that the worker gives back right now is held for a moment
    assert {result.state for result in results[1:]} == {"PENDING"}
    workers.start(BASIC, concurrency=1)
    journal.wait_finished(4)
    until(lambda: {result.state for result in results} == {"SUCCESS"})
    state.wait_empty()
