"""A call whose reply was lost, and that is sent again: the same answer, and nothing happens twice."""

from __future__ import annotations

import json
from dataclasses import replace

from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange_reply import Answer
from tests.store.caller import Caller, ended, message_of, started
from tests.store.lock_caller import PLAN, LockCaller, end_lock
from tests.store.peek import KEY, Snapshot, peek


def content(store: Snapshot) -> object:
    """Return everything but the ends of the leases: repeated grants start new leases."""
    return store.hashes, {**store.sets, "leases": store.leases.keys()}


def test_the_same_call_again_is_only_answered_again(worker: Caller, two: Limit, redis: Redis) -> None:
    """Such a call has grants with messages, requests, parked tasks and withdrawn ones."""
    held = [worker.take(task, two) for task in ("t1", "t2")]
    for task in ("t3", "t4"):
        worker.put(task, two)
    first = worker.exchange(
        2, ended=[ended(each) for each in held], asked=[worker.arrival("t5", two)], parked=[worker.parcel("t6", two)]
    )
    assert started(first) == ("t3", "t4")
    assert (first.asked, first.parked) == ((Answer.MUST_PARK,), (Answer.PARKED,))
    before = peek(redis)
    assert replace(worker.again(), wait=first.wait) == first
    after = peek(redis)
    assert content(after) == content(before)
    assert all(after.leases[task] >= before.leases[task] for task in before.leases)


def test_replayed_withdrawal_returns_the_message_again(worker: Caller, one: Limit) -> None:
    """Its message may have any bytes; the next call confirms it."""
    worker.take("t", one)
    message = bytes(range(256)) + b'"\\/'
    worker.put("t1", one, message=message)
    worker.put("t2", one)
    first = worker.exchange(revoked=["t1", "t2", "unknown"])
    assert [(each.task, each.message) for each in first.withdrawn] == [("t1", message), ("t2", message_of("t2"))]
    assert worker.again().withdrawn == first.withdrawn
    assert worker.again().withdrawn == first.withdrawn
    assert worker.look().withdrawn == ()
    assert worker.again().withdrawn == ()


def test_the_next_call_repeats_what_was_not_read(worker: Caller, one: Limit, redis: Redis) -> None:
    """A full store refused a call whose earlier copy was on its way: that copy is carried out once there is memory."""
    held = worker.take("t", one)
    for task in ("t1", "t2"):
        worker.put(task, one)
    read = worker.number
    unread = worker.exchange(1, ended=[ended(held)], revoked=["t2"])
    assert started(unread) == ("t1",)
    reply = worker.exchange(1, read=read)
    assert (reply.grants, reply.withdrawn) == (unread.grants, unread.withdrawn)
    worker.release(reply.grants[0])
    assert not peek(redis).records


def test_a_call_that_was_read_is_not_repeated(worker: Caller, one: Limit) -> None:
    """The refused call had no copy: the store has carried out no call since the last one that was read."""
    worker.put("t1", one)
    (grant,) = worker.look().grants
    assert not worker.exchange(1, read=worker.number).grants
    worker.release(grant)


def test_error_is_counted_once(worker: Caller, peer: Caller, redis: Redis) -> None:
    worker.exchange(errors=2)
    worker.again()
    peer.exchange(errors=1)
    worker.look()
    assert peek(redis).meta["errors"] == "3"


def test_call_of_a_worker_after_its_sign_off_does_nothing(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """A copy of it was on its way on a broken connection; its parked tasks have run by now."""
    worker.put("t", one)
    worker.leave()
    (grant,) = peer.look().grants
    peer.release(grant)
    worker.raw(worker.last, worker.number)
    assert not peek(redis).records


def test_a_call_that_a_later_one_has_overtaken_does_nothing(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """It was sent on a connection that broke, and again on the next one; the server reads the first one last."""
    worker.put("t0", one)
    overtaken, number = worker.last, worker.number
    worker.put("t1", one)
    before = peek(redis)

    worker.raw(overtaken, number)
    assert content(peek(redis)) == content(before)

    # Above all it does not confirm the tasks that the later one parked: a second delivery of it is on record.
    for _ in range(2):
        (grant,) = peer.look().grants
        peer.release(grant)
    assert not peer.put("t1", one).grants
    assert not peek(redis).records


def test_grants_that_were_not_read_take_the_slots_of_the_next_call(worker: Caller) -> None:
    """A full store refused a call, and an earlier copy of it was carried out later: its answer was not read."""
    two = Limit("two", 2)
    held = [worker.take(task, two) for task in ("h1", "h2")]
    for task in ("t1", "t2"):
        worker.put(task, two)
    worker.exchange(ended=[ended(run) for run in held])
    assert started(worker.exchange(1)) == ("t1",)
    assert started(worker.exchange(1, read=worker.number - 1)) == ("t1",)
    assert started(worker.exchange(1)) == ("t2",)


def test_a_holder_that_asks_again_has_a_whole_lease(worker: Caller, one: Limit, redis: Redis) -> None:
    run = worker.take("t", one)
    till = peek(redis).leases["t"]
    redis.zadd(KEY["leases"], {"t": till - 1000})
    assert worker.exchange(asked=[run]).asked == (Answer.GRANTED,)
    assert peek(redis).leases["t"] >= till


def test_a_permit_that_the_answer_gives_back_is_for_the_next_task(
    once: LockCaller, worker: Caller, one: Limit, redis: Redis
) -> None:
    """Another task has got the lock of the granted one before the worker read the reply."""
    once.start("t", PLAN, one)
    worker.put("waits", one)
    end_lock(redis)
    LockCaller(redis, "eeeeeeee", "q").start("other", PLAN)
    assert once.again().asked == (Answer.MUST_PARK,)
    assert started(worker.look()) == ("waits",)


def test_a_confirmed_copy_is_forgotten_at_once(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    worker.put("t", one)
    peer.release(peer.look().grants[0])
    assert json.loads(peek(redis).hashes["workers"][worker.name])["confirms"] == ["0 t"]
    worker.look()
    assert "confirms" not in json.loads(peek(redis).hashes["workers"][worker.name])
