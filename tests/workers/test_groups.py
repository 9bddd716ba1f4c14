"""Limits in several groups: each group is a place in Redis of its own, in a cluster maybe on a node of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_throttle import ConfigurationError, Limit, NotAcquired, Throttled
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.testing import ThrottleTest
from tests.support.kit import assert_all_ended, begun, new_app, task_maker
from tests.support.state import State

EU, US = Limit("eu", 2, group="eu"), Limit("us", 1, group="us")

APP = new_app("groups")
make_task = task_maker(APP)
in_eu = make_task("in_eu", base=Throttled, limit=EU)
in_us = make_task("in_us", base=Throttled, limit=US, singleton=True, unique_on=["label"], acks_late=True)
anywhere = make_task("anywhere", base=Throttled, limit=1)


@pytest.fixture
def used(throttle: ThrottleTest, server: EmbeddedServer) -> Callable[[str], dict[str, int]]:
    """``used("eu")`` returns the permits in use in one group, as a program of this group alone sees them."""
    return lambda group: State(lambda: server.url, throttle_prefix=throttle.prefix, throttle_group=group).used


def publish() -> list[Any]:
    """Publish four tasks of each group."""
    return [task.delay(str(number)) for task in (in_eu, in_us, anywhere) for number in range(4)]


def test_each_group_has_its_own_limits_and_control_sees_and_steers_all(throttle: ThrottleTest, used: Any) -> None:
    control = throttle.control
    with throttle.run_worker(concurrency=8), throttle.run_worker(concurrency=8):
        with throttle.gate() as gate:
            publish()
            gate.wait_for(4)
            throttle.settle()
            assert (used("eu"), used("us"), used("")) == ({"eu": 2}, {"us": 1}, {anywhere.name: 1})
            held = {status.name: (status.held, status.parked) for status in control.status()}
            assert held == {"eu": (2, 2), "us": (1, 3), anywhere.name: (1, 3)}
            assert (len(control.holders()), len(control.holders("eu")), len(control.parked())) == (4, 2, 8)
            assert control.explain(control.parked("us")[0].task_id).limit == "us"
            control.limit("us").override(3, why="test")
            gate.wait_for(6)
            assert used("us") == {"us": 3}
            with pytest.raises(ConfigurationError, match="did you mean 'us'"):
                control.limit("eus")
        assert_all_ended(throttle)
        for limit, permits in ((EU, 2), (US, 3), (anywhere, 1)):
            throttle.assert_most_at_once(limit, permits)


def test_one_slot_serves_every_group(throttle: ThrottleTest) -> None:
    with throttle.run_worker(concurrency=1):
        results = publish()
        assert set(throttle.drain().succeeded) == {each.id for each in results}
        assert_all_ended(throttle)


def test_a_lost_worker_loses_its_permits_in_every_group(throttle: ThrottleTest) -> None:
    with throttle.gate() as gate, throttle.run_worker(concurrency=8) as lost:
        results = publish()
        throttle.settle()
        early = {each for each in gate.waiting if each not in {result.id for result in results[4:8]}}
        with throttle.run_worker(concurrency=8):
            lost.lose()
            throttle.advance(60)
            gate.open()
            # The lost task of "us" is acknowledged late, so it runs again.
            assert set(throttle.drain().succeeded) == {each.id for each in results} - early
            assert len(early) == 3
            assert (*throttle.control.holders(), *throttle.control.parked()) == ()


def test_duplicate_and_outside_permit_are_found_in_their_group(kit: ThrottleTest, used: Any) -> None:
    with kit.gate():
        first = begun(kit, in_us.delay("a"))
        assert in_us.delay("a").id == first.id
        assert in_us.locked_by("a").task_id == first.id
        with pytest.raises(NotAcquired):
            US.acquire(0, app=APP)
        with EU.acquire(0, app=APP):
            assert used("eu") == {"eu": 1}
    kit.assert_not_locked(in_us.s("a"))


@pytest.mark.throttle(throttle_group="eu")
def test_a_group_for_all(kit: ThrottleTest, used: Any) -> None:
    with kit.gate():
        begun(kit, anywhere.delay("a"))
        assert used("eu") == {anywhere.name: 1}
    assert_all_ended(kit)
    assert used("eu") == {}
