"""Queues whose turn it is and that the caller does not consume: many of them, and times; the rest are stories."""

from __future__ import annotations

import pytest
from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange import Arrival
from tests.primitives.faults import StoreClock
from tests.store.caller import Caller, started
from tests.store.hints import Hints
from tests.store.peek import KEY, let_come_due, pass_over, peek

pytestmark = pytest.mark.usefixtures("clock")  # time stands still

OFFER = 0.11
THEIRS = "1:gpu\0q2"


def pass_of(redis: Redis, clock: StoreClock) -> float:
    """How long the only lane that is passed over is so, in milliseconds."""
    store = peek(redis)
    (till,) = store.due("lane").values()
    return till - clock.now // 1000


def let_pass(redis: Redis) -> None:
    """Let the time be over for which a lane is passed over."""
    let_come_due(redis, "lane")


@pytest.fixture
def held(worker: Caller, stranger: Caller, one: Limit) -> Arrival:
    """The only permit; first in line is a task of a queue that only the stranger consumes, then one of ours."""
    held = worker.take("t1", one)
    stranger.put("theirs", one)
    worker.put("ours", one)
    return held


def test_a_dead_queue_is_asked_again_once_a_minute(
    worker: Caller, held: Arrival, redis: Redis, hints: Hints, clock: StoreClock
) -> None:
    """In between, its turn delays no task."""
    worker.release(held, slots=0)
    heard = []
    for _ in range(3):
        pass_over(redis, "gpu", "q2")
        assert worker.look(0).more
        assert pass_of(redis, clock) == 60_000
        heard += hints.ready()
        let_pass(redis)
        assert 0 < worker.look(0).wait <= OFFER
    assert heard == ["q2", "q"], "once each: it is ready until a worker with a slot has looked"


def test_many_dead_queues_are_passed_over_together(worker: Caller, one: Limit, redis: Redis) -> None:
    """Each had its moment; none of them holds up ours for another one."""
    held = worker.take("holder", one)
    for number in range(40):
        worker.put(f"dead{number}", one, queue=f"dead{number:02}")
    worker.put("ours", one)
    worker.release(held)
    for number in range(40):
        pass_over(redis, "gpu", f"dead{number:02}")
    assert started(worker.look(1)) == ()  # a call looks at so many lanes; the next ones go on at once
    assert worker.look_on(1) == ["ours"]


def test_a_lane_has_its_turn_again_in_the_same_call(worker: Caller, stranger: Caller, redis: Redis) -> None:
    """Also at a key that the call has looked at before."""
    tenant = Limit("tenant", 1, key="id")
    held = worker.take("t1", tenant)
    stranger.put("theirs", tenant)
    worker.put("ours", tenant)
    worker.release(held, slots=0)
    pass_over(redis, "tenant\x1fk", "q2")
    worker.look(0)
    redis.zadd(KEY["due"], {"limit:tenant": 0})
    let_pass(redis)
    assert started(worker.look()) == ()
