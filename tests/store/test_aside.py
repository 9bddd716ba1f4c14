"""Unreadable records: corrupt, foreign, or of another release."""

from __future__ import annotations

import json

import pytest
from redis import Redis

from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange_reply import Answer, Grant
from tests.store.caller import Caller, ended, message_of, started
from tests.store.lock_caller import LockCaller, plan_of
from tests.store.peek import KEY, expire, lapse, peek
from tests.store.steering import Steering

WHY = {
    b"\x80 not json": "not readable",
    b"": "not readable",
    b"[]": "written by another release",
    b"7": "written by another release",
    b'{"needs":"1:gpu","queue":"q"}': "written by another release",
    b'{"v":3,"needs":"1:gpu"}': "written by another release",
}
each_kind = pytest.mark.parametrize("packed", WHY)


def spoil(redis: Redis, task: str, packed: bytes) -> None:
    redis.hset(KEY["records"], task, packed)


@each_kind
def test_the_line_goes_on_without_it(worker: Caller, one: Limit, redis: Redis, packed: bytes) -> None:
    """It is set aside with its message when its turn comes, and those behind it start."""
    held = worker.take("t0", one)
    for task in ("t1", "t2"):
        worker.put(task, one)
    spoil(redis, "t1", packed)
    assert started(worker.release(held, slots=1)) == ("t2",)
    (aside,) = Steering(redis).aside()
    assert (aside.task_id, aside.why) == ("t1", WHY[packed])
    assert peek(redis).messages["t1"] == message_of("t1")
    assert peek(redis).hashes["waiting"] == {}


@each_kind
def test_other_waiting_tasks_get_the_same_outcome(redis: Redis, one: Limit, packed: bytes) -> None:
    plan, once = plan_of(), LockCaller(redis, "bbbbbbbb", "q")
    first = once.start("t0", plan)
    for task in ("t1", "t2"):
        once.arrive(task, plan, one)
    spoil(redis, "t1", packed)
    assert [(each.task, each.verdict) for each in once.end(first, slots=2)] == [("t2", "conclude")]
    assert [each.task_id for each in Steering(redis).aside()] == ["t1"]
    assert peek(redis).hashes["waiting"] == {}


@each_kind
def test_set_aside_record_is_listed(worker: Caller, one: Limit, redis: Redis, packed: bytes) -> None:
    worker.put("t1", one)
    spoil(redis, "t1", packed)
    assert Steering(redis).parked()[0].task_id == "t1"
    worker.look()
    assert not Steering(redis).parked()
    why = Steering(redis).explain("t1")
    assert why.state == "set aside"
    assert WHY[packed] in why.reasons[0]


@each_kind
def test_unreadable_holder_holds_nothing_after_its_lease(
    worker: Caller, two: Limit, redis: Redis, packed: bytes
) -> None:
    """Counting all other holders gives the permits that it held."""
    worker.take("t1", two)
    held = worker.take("t2", two)
    worker.put("t3", two)
    spoil(redis, "t1", packed)
    expire(redis, "t1")
    assert started(worker.look(2)) == ("t3",)
    assert peek(redis).used == {"gpu2": 2}
    worker.release(held)
    assert peek(redis).used == {"gpu2": 1}


@each_kind
def test_unreadable_holder_is_set_aside_by_its_end(worker: Caller, one: Limit, redis: Redis, packed: bytes) -> None:
    held = worker.take("t1", one)
    worker.put("t2", one)
    spoil(redis, "t1", packed)
    assert started(worker.exchange(1, ended=[ended(held)])) == ("t2",)
    assert peek(redis).used == {"gpu": 1}


@each_kind
def test_another_delivery_of_it_runs(worker: Caller, one: Limit, redis: Redis, packed: bytes) -> None:
    """The broker has a message of it, or a caller publishes it again."""
    held = worker.take("t0", one)
    worker.put("t1", one)
    spoil(redis, "t1", packed)
    worker.release(held)
    answer, _ = worker.ask("t1", one)
    assert answer in (Answer.GRANTED, Answer.MUST_PARK)
    if answer == Answer.MUST_PARK:
        assert started(worker.put("t1", one, slots=1)) == ("t1",)
    assert peek(redis).holders("gpu") == ["t1"]


def spoil_delivery(redis: Redis, task: str) -> None:
    """Spoil the list of held permits; the rest of its record stays readable."""
    record = json.loads(redis.hget(KEY["records"], task) or "{}")
    spoil(redis, task, json.dumps({**record, "needs": 7}).encode())


def test_another_delivery_that_waited_for_it_goes_on(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    worker.take("t", one)
    peer.put("t", one)
    spoil_delivery(redis, "t")
    expire(redis, "t")
    assert started(peer.look()) == ("t",)
    assert [each.task_id for each in Steering(redis).aside()] == ["t"]


@each_kind
def test_of_a_record_that_is_no_record_both_messages_are_kept(
    worker: Caller, peer: Caller, one: Limit, redis: Redis, packed: bytes
) -> None:
    worker.take("t", one)
    peer.put("t", one)
    spoil(redis, "t", packed)
    expire(redis, "t")
    assert started(peer.look()) == ()
    assert [each.task_id for each in Steering(redis).aside()] == ["t"]
    assert peek(redis).second_messages == {"t": message_of("t")}
    lapse(redis, "aside:t")
    peer.reap()
    assert not redis.exists(KEY["messages"])


def test_run_goes_on_beside_an_unreadable_delivery(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    held = worker.take("t", one)
    peer.put("t", one, attempt=1)
    record = json.loads(redis.hget(KEY["records"], "t") or "{}")
    spoil(redis, "t", json.dumps({**record, "second": {"needs": 7}}).encode())
    assert worker.renew(held, number=worker.number) == [1]
    assert [(each.task_id, each.why) for each in Steering(redis).aside()] == [("t", "not readable: second")]
    worker.release(held)
    assert not peek(redis).records
    lapse(redis, "aside:t")
    peer.reap()
    assert not redis.exists(KEY["messages"])


def test_expected_retry_survives_an_unreadable_delivery(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    held = worker.take("t", one)
    worker.release(held, Facts(True, Message.BROKER, Result.SUCCESS))
    worker.take("t", one, attempt=1)
    spoil_delivery(redis, "t")
    assert peer.ask("t", one)[0] == Answer.HAS_RUN
    assert peek(redis).finished.keys() == {"0 t"}


@pytest.mark.parametrize("how", ["ask", "park", "put back", "end", "send back", "save"])
def test_other_delivery_goes_on_after_any_discovery(
    worker: Caller, peer: Caller, one: Limit, redis: Redis, how: str
) -> None:
    held = worker.take("t", one)
    peer.put("t", one)
    spoil_delivery(redis, "t")
    found: tuple[Grant, ...] = ()
    if how == "ask":
        reply = peer.exchange(asked=[peer.arrival("t", one)])
        assert reply.asked == (Answer.PARKED,)
        found = reply.grants
    elif how == "park":
        peer.put("t", one)
    elif how == "put back":
        assert worker.renew(held, number=worker.number) == [2]
        worker.release(held, "again")
    elif how == "end":
        worker.release(held, "failed")  # a success would end it for all
    elif how == "send back":
        worker.send_back(held, 0.0)
    else:
        assert peer.saved("t") == [1]
    (grant,) = found or peer.look().grants
    assert (grant.task, grant.message) == ("t", message_of("t"))
    peer.release(grant)
    store = peek(redis)
    assert not store.records
    assert not store.sets["lines"]


def test_other_delivery_of_an_unreadable_parked_task_goes_on(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """The first was rejected, to be run again."""
    (first,) = worker.put("t", one, slots=1).grants
    peer.put("t", one, message=b"second")
    worker.release(first, "requeue")
    spoil_delivery(redis, "t")
    (grant,) = peer.look().grants
    assert grant.message == b"second"
    peer.release(grant)
    assert not peek(redis).sets["lines"]


def test_other_delivery_of_an_unreadable_follower_goes_on(redis: Redis) -> None:
    once, plan = LockCaller(redis, "dddddddd", "q"), plan_of()
    (first,) = once.put_once("t", plan, slots=1)
    once.put_once("t", plan)
    once.unlock("same")
    other = once.start("other", plan)
    assert once.end(first, "again", slots=1) == ()
    assert peek(redis).parked["t"].verdict == "follow"
    spoil_delivery(redis, "t")
    (last,) = (*once.end(other, slots=1), *once.look_once())
    assert last.task == "t"
    once.end(last)
    store = peek(redis)
    assert not store.records
    assert not store.sets["lines"]


@each_kind
def test_lock_of_an_unreadable_task_ends(worker: Caller, one: Limit, redis: Redis, packed: bytes) -> None:
    redis.hset(KEY["locks"], "same", packed)
    redis.zadd(KEY["ends"], {"locks:same": peek(redis).now + 60_000})
    arrival = worker.arrival("t", one, lock=plan_of(on_conflict="skip").spec)
    assert worker.exchange(asked=[arrival]).asked[0] > max(Answer)


@each_kind
def test_unreadable_lock_goes_when_its_time_is_over(worker: Caller, one: Limit, redis: Redis, packed: bytes) -> None:
    worker.take("t1", one)
    worker.put("t2", one)
    redis.hset(KEY["locks"], "same", packed)
    redis.zadd(KEY["ends"], {"locks:same": 1})
    worker.look()
    assert not peek(redis).hashes["locks"]


def test_all_scripts_of_a_group_go_on(worker: Caller, two: Limit, redis: Redis) -> None:
    """Ten at once, held and parked, in all that there is."""
    for number in range(2):
        worker.take(f"h{number}", two)
    for number in range(8):
        worker.put(f"p{number}", two, wait_ms=600_000)
    for task in peek(redis).records:
        spoil(redis, task, b"{")
    worker.put("good", two)
    expire(redis, "h0", "h1")
    worker.reap()
    assert started(worker.look(9)) == ("good",)
    assert worker.withdraw(*(f"p{number}" for number in range(8))) == ()
    found = Steering(redis).aside()
    assert {each.task_id for each in found} >= {"h0", "h1", "p0"}


def test_set_aside_record_goes_after_a_week(worker: Caller, one: Limit, redis: Redis) -> None:
    worker.put("t1", one)
    spoil(redis, "t1", b"{")
    worker.look()
    store = peek(redis)
    assert store.sets["ends"]["aside:t1"] == pytest.approx(store.now + 7 * 86_400_000, abs=60_000)
    lapse(redis, "aside:t1")
    worker.reap()
    store = peek(redis)
    assert not store.hashes["aside"]
    assert not store.messages


def test_it_does_not_take_the_message_of_a_new_one_along(worker: Caller, one: Limit, redis: Redis) -> None:
    """The same task waits again by then."""
    worker.put("t1", one)
    spoil(redis, "t1", b"{")
    worker.look()
    worker.take("t0", one)
    worker.put("t1", one)
    lapse(redis, "aside:t1")
    worker.reap()
    assert peek(redis).messages == {"t1": message_of("t1")}
