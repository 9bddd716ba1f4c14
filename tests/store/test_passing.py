"""When it is the turn of a queue that the caller does not consume."""

from __future__ import annotations

import json

import pytest
from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange import Arrival
from tests.primitives.faults import StoreClock
from tests.store.caller import Caller, ended, started
from tests.store.conftest import Hints
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


def test_the_other_queue_gets_a_hint_and_a_moment(worker: Caller, held: Arrival, hints: Hints) -> None:
    """The reply gives the caller a time to look again; the queue whose turn it is gets one hint."""
    reply = worker.release(held, slots=1)
    assert reply.grants == ()
    assert 0 < reply.wait <= OFFER
    assert reply.closed == ("gpu",)
    assert hints.ready() == ["q2"]
    assert 0 < worker.look(1).wait <= OFFER
    assert hints.take() == []


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


def test_a_queue_that_answers_is_offered_its_turn_again(
    worker: Caller, stranger: Caller, held: Arrival, one: Limit, redis: Redis
) -> None:
    """It had been passed over; after its first answer, it is in line like any other."""
    worker.release(held, slots=0)
    pass_over(redis, "gpu", "q2")
    (ours,) = worker.look(1).grants
    stranger.put("theirs too", one)
    worker.put("ours too", one)
    (theirs,) = stranger.exchange(1, ended=[ended(ours)]).grants
    assert theirs.task == "theirs"
    worker.release(theirs)
    reply = worker.look(1)
    assert reply.grants == ()
    assert reply.wait > 0


def test_a_passed_over_queue_still_takes_its_turn_first(
    worker: Caller, stranger: Caller, held: Arrival, redis: Redis
) -> None:
    """A passed over lane keeps its place, so a worker that can start it finds it first."""
    worker.release(held, slots=0)
    pass_over(redis, "gpu", "q2")
    worker.look(0)
    assert peek(redis).passed == {THEIRS}
    everywhere = Caller(redis, "dddddddd", *worker.queues, *stranger.queues)
    assert started(everywhere.look(1)) == ("theirs",)


def test_one_that_is_passed_over_is_in_line_again_after_a_while(worker: Caller, held: Arrival, redis: Redis) -> None:
    """The next caller at the same limit then finds it before the newer task."""
    worker.release(held, slots=0)
    pass_over(redis, "gpu", "q2")
    (ours,) = worker.look(1).grants
    let_pass(redis)
    reply = worker.release(ours, slots=1)
    assert reply.grants == ()
    store = peek(redis)
    assert not store.passed
    assert store.lanes[THEIRS]["at"] == "gpu"


def test_passed_over_task_is_in_line_again_without_free_permits(worker: Caller, held: Arrival, redis: Redis) -> None:
    worker.release(held, slots=0)
    pass_over(redis, "gpu", "q2")
    assert started(worker.look(1)) == ("ours",)
    let_pass(redis)
    worker.look(1)
    assert "passed" not in peek(redis).lanes[THEIRS]


def test_an_offer_on_one_limit_does_not_hold_up_another(worker: Caller, held: Arrival, two: Limit) -> None:
    worker.put("elsewhere", two)
    worker.release(held)
    reply = worker.look(2)
    assert started(reply) == ("elsewhere",)
    assert reply.wait > 0


def test_a_lone_task_of_another_queue_is_a_line(worker: Caller, stranger: Caller, one: Limit) -> None:
    """A call that has looked whether another queue waits behind it still finds it."""
    held = worker.take("t1", one)
    stranger.put("theirs", one)
    assert worker.release(held, slots=1).closed == ("gpu",)


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


def test_all_lanes_behind_a_passed_over_one_get_a_moment_at_once(worker: Caller, one: Limit, redis: Redis) -> None:
    held = worker.take("holder", one)
    for queue in ("dead0", "dead1", "dead2"):
        worker.put(queue, one, queue=queue)
    worker.put("ours", one)
    worker.release(held)
    pass_over(redis, "gpu", "dead0")
    worker.look(0)
    assert peek(redis).offered == {"1:gpu\0dead1", "1:gpu\0dead2"}


def test_a_worker_without_slots_wakes_the_others(worker: Caller, one: Limit, hints: Hints) -> None:
    """It frees a permit but cannot start the next task: another worker may."""
    held = worker.take("t1", one)
    worker.put("t2", one)
    assert worker.release(held, slots=0).more
    assert hints.ready() == ["q"]


def test_a_queue_is_woken_once_by_one_call(worker: Caller, one: Limit, two: Limit, hints: Hints) -> None:
    """However many of its tasks could start."""
    held = [worker.take("t1", one), worker.take("t2", two), worker.take("t3", two)]
    worker.put("t4", one)
    worker.put("t5", two)
    hints.take()
    worker.exchange(0, ended=[ended(each) for each in held])
    assert hints.ready() == ["q"]


def test_task_without_a_slot_in_its_call_needs_no_other_look(
    worker: Caller, one: Limit, two: Limit, redis: Redis
) -> None:
    """It is ready for any worker; a look that is due would cost a call more."""
    held = [worker.take("t1", one), worker.take("t2", two), worker.take("t3", two)]
    worker.put("t4", one)
    worker.put("t5", two)
    reply = worker.exchange(1, ended=[ended(each) for each in held])
    assert started(reply) == ("t4",)
    assert reply.more
    assert not peek(redis).due("bucket")


def test_task_without_a_slot_in_its_call_is_offered(
    worker: Caller, stranger: Caller, one: Limit, two: Limit, redis: Redis
) -> None:
    """Another queue waits behind it, and goes on if no worker takes it in time."""
    held = [worker.take("t1", one), worker.take("t2", two), worker.take("t3", two)]
    worker.put("t4", one)
    worker.put("t5", two)
    stranger.put("t6", two)
    assert started(worker.exchange(1, ended=[ended(each) for each in held])) == ("t4",)
    assert peek(redis).offered == {"1:gpu2\0q"}


def test_new_line_is_reported_once(worker: Caller, peer: Caller, one: Limit, hints: Hints) -> None:
    """Workers with tasks for the same limit then park them at once."""
    worker.take("t1", one)
    hints.take()
    worker.put("t2", one)
    assert hints.take() == ["line gpu"]
    peer.put("t3", one)
    assert hints.take() == []


def test_line_within_one_call_is_not_reported(worker: Caller, one: Limit, hints: Hints) -> None:
    worker.know(one)
    hints.take()
    worker.put("t1", one, slots=1)
    assert hints.take() == []


def test_next_caller_sees_the_passed_time(worker: Caller, held: Arrival, redis: Redis) -> None:
    """The moment of an offer ends though no caller has looked at that limit since."""
    worker.release(held, slots=0)
    entry = {**peek(redis).lanes[THEIRS], "offered": 1}
    redis.hset(KEY["lanes"], THEIRS, json.dumps(entry, separators=(",", ":")))
    let_come_due(redis, "bucket")
    assert started(worker.look(1)) == ("ours",)


def test_next_task_of_a_passed_over_queue_can_start_at_once(
    worker: Caller, stranger: Caller, one: Limit, redis: Redis
) -> None:
    """Though the first has left its line meanwhile."""
    held = worker.take("t1", one)
    for task in ("revoked", "theirs"):
        stranger.put(task, one)
    worker.put("ours", one)
    worker.release(held)
    pass_over(redis, "gpu", "q2")
    worker.look(0)
    worker.exchange(revoked=["revoked"])
    assert peek(redis).lanes[THEIRS]["passed"]
    assert started(stranger.look(1)) == ("theirs",)
