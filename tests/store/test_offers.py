"""When it is the turn of a queue that the caller does not consume."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.store.caller import Caller, Held
from tests.store.peek import META, peek
from tests.support.waiting import until

if TYPE_CHECKING:
    from redis import Redis

    from celery_throttle.core.limits import Limit
    from tests.store.conftest import Hints

OFFER = 0.05


def pass_of(redis: Redis) -> int:
    """How long the only offer would be passed over, in milliseconds."""
    (offer,) = peek(redis).offers.values()
    return int(offer.split()[1])


def let_time_pass(redis: Redis, milliseconds: int) -> None:
    """As if the only offer had been made so much earlier."""
    ((limit, queue), offer) = next(iter(peek(redis).offers.items()))
    till, passed = map(int, offer.split())
    redis.hset(META, f"offer:{limit}\0{queue}", f"{till - milliseconds} {passed}")


@pytest.fixture
def held(worker: Caller, stranger: Caller, one: Limit) -> Held:
    """The only permit; first in line is a task of a queue that only the stranger consumes, then one of ours."""
    held = worker.take("t1", one)
    stranger.put("theirs", one)
    worker.put("ours", one)
    return held


def test_the_other_queue_gets_a_hint_and_a_moment(worker: Caller, held: Held, hints: Hints) -> None:
    """The caller is told when to look again, the workers of the queue whose turn it is are woken, once."""
    reply = worker.release(held, slots=1)
    assert reply.grants == ()
    assert 0 < reply.wait <= OFFER
    assert reply.emptied == ()
    assert hints.take() == ["q2"]
    assert 0 < worker.look(1).wait <= OFFER
    assert hints.take() == []


def test_the_other_queue_takes_its_turn(worker: Caller, stranger: Caller, held: Held, redis: Redis) -> None:
    """First come, first served, also between workers; taken offers leave nothing behind."""
    worker.release(held, slots=1)
    assert [grant.task_id for grant in stranger.look(1).grants] == ["theirs"]
    assert peek(redis).offers == {}


def test_a_dead_queue_is_passed_over(worker: Caller, held: Held) -> None:
    """Nobody takes the offer: after that moment, our own task starts."""
    worker.release(held, slots=1)
    (grant,) = until(lambda: worker.look(1).grants, timeout=5, every=0.005)
    assert grant.task_id == "ours"


def test_a_dead_queue_is_asked_again_ever_more_rarely(worker: Caller, held: Held, redis: Redis, hints: Hints) -> None:
    """A second, then twice as long each time, up to a minute; in between its turn costs nobody anything."""
    worker.release(held, slots=1)
    passes = []
    for _ in range(8):
        passes.append(pass_of(redis))
        assert hints.take() == ["q2"]
        let_time_pass(redis, 100)
        assert worker.look(0).wait == 0
        assert hints.take() == ["q"]
        let_time_pass(redis, passes[-1])
        assert worker.look(0).wait > 0
    assert passes == [1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]


def test_a_queue_that_answers_is_offered_its_turn_again(
    worker: Caller, stranger: Caller, held: Held, one: Limit, redis: Redis
) -> None:
    """It had been passed over; as soon as somebody takes from it, it is in line like any other."""
    worker.release(held, slots=1)
    let_time_pass(redis, 100)
    (ours,) = worker.look(1).grants
    stranger.put("theirs too", one)
    worker.put("ours too", one)
    (theirs,) = stranger.exchange(1, released=[(ours.task_id, ours.nonce, "done")]).grants
    assert theirs.task_id == "theirs"
    worker.release(theirs)
    reply = worker.look(1)
    assert reply.grants == ()
    assert reply.wait > 0


def test_a_passed_over_queue_still_takes_its_turn_first(
    worker: Caller, stranger: Caller, held: Held, redis: Redis
) -> None:
    """Passed over is not put back: whoever can start it finds it first."""
    worker.release(held, slots=1)
    let_time_pass(redis, 100)
    everywhere = Caller(redis, "dddddddd", *worker.queues, *stranger.queues)
    assert [grant.task_id for grant in everywhere.look(1).grants] == ["theirs"]


def test_a_withdrawn_task_takes_its_offer_along(worker: Caller, held: Held, redis: Redis) -> None:
    worker.release(held, slots=1)
    worker.withdraw("theirs")
    assert peek(redis).offers == {}
    assert [grant.task_id for grant in worker.look(1).grants] == ["ours"]


def test_an_offer_on_one_limit_does_not_hold_up_another(worker: Caller, held: Held, two: Limit) -> None:
    worker.put("elsewhere", two)
    worker.release(held)
    reply = worker.look(2)
    assert [grant.task_id for grant in reply.grants] == ["elsewhere"]
    assert reply.wait > 0


def test_a_worker_without_slots_wakes_the_others(worker: Caller, one: Limit, hints: Hints) -> None:
    """It frees a permit but cannot start what is next: somebody else may."""
    held = worker.take("t1", one)
    worker.put("t2", one)
    assert worker.release(held, slots=0).more
    assert hints.take() == ["q"]


def test_a_queue_is_woken_once_by_one_call(worker: Caller, one: Limit, two: Limit, hints: Hints) -> None:
    """However many of its tasks could start."""
    held = [worker.take("t1", one), worker.take("t2", two), worker.take("t3", two)]
    worker.put("t4", one)
    worker.put("t5", two)
    hints.take()
    worker.exchange(0, released=[each.returned() for each in held])
    assert hints.take() == ["q"]
