"""Limits in several groups: each group is a place in Redis of its own, in a cluster maybe on a node of its own."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from celery_throttle import ConfigurationError, NotAcquired, ThrottleControl
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers

GROUPS = "tests.support.apps.groups"


@pytest.fixture
def states(redis: Redis) -> dict[str, State]:
    return {"": State.at(redis), "eu": State.at(redis, "throttle:eu"), "us": State.at(redis, "throttle:us")}


def publish(app: Any) -> list[str]:
    """Four tasks for each group."""
    labels = []
    for name in ("in_eu", "in_us", "anywhere"):
        for number in range(4):
            labels.append(f"{name}{number}")
            getattr(app, name).delay(labels[-1])
    return labels


def test_each_group_has_its_own_limits(workers: Workers, journal: Journal, states: dict[str, State]) -> None:
    app = workers.start_app(GROUPS, count=2, concurrency=8)
    labels = publish(app)
    journal.wait_running(4)
    for group, parked in (("", 3), ("eu", 2), ("us", 3)):
        states[group].wait_parked(parked)
    assert states["eu"].used == {"eu": 2}
    assert states["us"].used == {"us": 1}
    assert states[""].used == {app.anywhere.name: 1}
    journal.let_go(*labels)
    journal.wait_finished(12)
    assert journal.max_running(task="in_eu") == 2
    assert journal.max_running(task="in_us") == journal.max_running(task="anywhere") == 1
    for state in states.values():
        state.wait_empty()


def test_few_slots_serve_every_group(workers: Workers, journal: Journal, states: dict[str, State]) -> None:
    """One slot for all: every group gets its turn, nothing is left."""
    workers.start(GROUPS, concurrency=1)
    labels = publish(workers.app(GROUPS))
    journal.let_go(*labels)
    journal.wait_finished(12)
    assert journal.max_running() == 1
    for state in states.values():
        state.wait_empty()


def test_a_lost_worker_loses_its_permits_in_every_group(
    workers: Workers, journal: Journal, states: dict[str, State]
) -> None:
    workers.conf["throttle_lease"] = 2.0
    lost = workers.start(GROUPS, concurrency=8)
    labels = publish(workers.app(GROUPS))
    journal.wait_running(4)
    states["us"].wait_parked(3)
    states[""].wait_parked(3)
    lost.kill()
    journal.let_go(*labels)
    workers.start(GROUPS, concurrency=8)
    # Two of eu and one of the group without a name had been acknowledged when they started.
    journal.wait_finished(2 + 3 + 3)
    for group in ("", "eu"):
        states[group].wait_empty()


def test_duplicate_and_outside_permit_are_found_in_their_group(
    workers: Workers, journal: Journal, states: dict[str, State]
) -> None:
    app = workers.start_app(GROUPS, concurrency=4)
    first = app.in_us.delay("a")
    assert app.in_us.delay("a").id == first.id
    assert app.in_us.locked_by("a").task_id == first.id
    journal.wait_running(1)
    with pytest.raises(NotAcquired):
        app.us.acquire(0, app=app.app)
    with app.eu.acquire(0, app=app.app):
        assert states["eu"].used == {"eu": 1}
    journal.let_go("a")
    assert first.get(timeout=20) == "a"
    until(lambda: app.in_us.locked_by("a") is None)


def test_throttle_sees_and_steers_all_groups(workers: Workers, journal: Journal, states: dict[str, State]) -> None:
    app = workers.start_app(GROUPS, concurrency=8)
    throttle = ThrottleControl(app.app)
    publish(app)
    journal.wait_running(4)
    states["eu"].wait_parked(2)
    states["us"].wait_parked(3)
    states[""].wait_parked(3)
    held = {status.name: (status.held, status.parked) for status in throttle.status()}
    assert held == {"eu": (2, 2), "us": (1, 3), app.anywhere.name: (1, 3)}
    assert len(throttle.holders()) == 4
    assert len(throttle.holders("eu")) == 2
    assert len(throttle.parked()) == 8
    waits = throttle.parked("us")[0]
    assert throttle.explain(waits.task_id).limit == "us"
    throttle.limit("us").override(3, why="test")
    journal.wait_running(6)
    assert states["us"].used == {"us": 3}
    with pytest.raises(ConfigurationError, match="did you mean 'us'"):
        throttle.limit("eus")


def test_a_group_for_all(workers: Workers, journal: Journal, redis: Redis) -> None:
    workers.conf["throttle_group"] = "eu"
    app = workers.start_app(GROUPS, concurrency=4)
    journal.wait_begun(app.anywhere.delay("a"))
    assert State.at(redis, "throttle:eu").used == {app.anywhere.name: 1}
    journal.let_go("a")
    journal.wait_finished(1)
    State.at(redis, "throttle:eu").wait_empty()
