"""What holds for a lock and for a permit alike, with threads and with asyncio: the rules of a lease."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Connection as AsyncConnection
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from celery_throttle.embedded import EmbeddedServer
from celery_throttle.errors import LeaseLost, NotAcquired
from celery_throttle.primitives import lease as leases
from celery_throttle.primitives import lock, semaphore
from celery_throttle.primitives.driving import ask, run
from celery_throttle.primitives.mailbox import IDLE
from celery_throttle.store.scripts import Call
from tests.primitives.faults import Resending, impatience, impatient_client
from tests.primitives.leased import KINDS, LeasedLock
from tests.primitives.pace import end_here, listening, look_often, renew_often
from tests.primitives.sides import AsyncioSide, SyncSide
from tests.store.cost import commands
from tests.support.waiting import HANGS_AFTER, until


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> type[LeasedLock]:
    return KINDS[request.param]


@pytest.fixture
def one(kind: type[LeasedLock], side: SyncSide, server: EmbeddedServer, redis: Redis) -> LeasedLock:
    """A lock, or the permit of a semaphore, on the emptied server."""
    return kind(side, side.client(server.url), redis)


@pytest.fixture
def other(kind: type[LeasedLock], redis: Redis) -> LeasedLock:
    """The same one for another caller, with threads."""
    return kind(SyncSide(), redis, redis)


# -- one holder ------------------------------------------------------------------------------------------------------


def test_one_holder_at_a_time(one: LeasedLock, other: LeasedLock) -> None:
    """Of all callers of both sides, also after the store has lost its data."""
    held = one.take()
    assert one.acquire() is None
    assert other.acquire() is None
    assert held.release() is True
    second = other.take()
    assert other.number(second) > one.number(held)
    one.view.flushall()
    assert one.number(one.take()) > other.number(second)
    with pytest.raises(LeaseLost):
        second.renew()


def test_handle_and_store_have_the_data_of_a_grant(one: LeasedLock, side: SyncSide) -> None:
    assert one.shown() is None
    held = one.take("é 1", 30)
    assert (held.identity, held.owner, held.lost) == ("a", "é 1", False)
    assert 20 < held.lease_left <= 30
    assert repr(held).startswith(f"<{type(getattr(held, 'thing', held)).__name__} 'a' ")
    first = one.there()
    assert (first.owner, first.number) == ("é 1", one.number(held))
    assert 20 < first.lease_left <= 30
    assert abs(first.since - datetime.now(timezone.utc)) < timedelta(seconds=5)
    held.renew(90)
    assert one.there().since == first.since, "of the grant, not of the renewal"
    assert side.at_work() == 0, "not renewed unless that is asked for"
    held.release()
    assert (held.lost, held.lease_left) == (False, 0)
    one.take()
    assert one.there().owner.startswith(f"{socket.gethostname()}:{os.getpid()}"), "without a name"


def test_an_end_of_the_lease_frees_it(one: LeasedLock, other: LeasedLock) -> None:
    """No reaper and no release wakes the caller that waits; and the late holder cannot touch the next one."""
    late = one.take("late", 0.3)
    held = one.acquire(blocking=True, timeout=HANGS_AFTER)
    assert one.number(held) > one.number(late)
    assert late.lost
    with pytest.raises(LeaseLost, match="'a' is not held by late any more"):
        late.renew()
    assert late.release() is False
    assert other.there().number == one.number(held)
    assert other.there().lease_left > 30


def test_renewing_lengthens_the_lease_from_now_on(one: LeasedLock) -> None:
    held = one.take(lease=50)
    for lease, least, most in [(None, 40, 50), (100, 90, 100), (None, 90, 100)]:
        assert held.renew(lease), "None is as long as the last time"
        assert least < one.there().lease_left <= most
        assert least < held.lease_left <= most


def test_late_renewal_that_the_store_accepts_is_no_loss(one: LeasedLock) -> None:
    """Paused for longer than the lease by our clock, but it had no other holder."""
    held = one.take()
    one.nearly_end()
    end_here(held)
    assert held.lost
    assert held.lease_left == 0
    assert held.renew(60)
    assert not held.lost
    assert one.renewed()


def test_a_released_one_is_released_once_and_not_renewed(one: LeasedLock) -> None:
    held = one.take()
    assert held.release()
    with pytest.raises(LeaseLost, match="was released"):
        held.renew()
    assert not held.lost
    one.take()
    assert held.release(), "the same answer"
    assert one.shown() is not None


@pytest.mark.parametrize("options", [{"decode_responses": True}, {"protocol": 3}])
def test_any_kind_of_client_and_scripts_forgotten_in_between(
    kind: type[LeasedLock], side: SyncSide, redis: Redis, server: EmbeddedServer, options: Any
) -> None:
    one = kind(side, side.client(server.url, **options), redis)
    redis.script_flush()
    held = one.take("é")
    assert (one.there().owner, one.there().number) == ("é", one.number(held))
    assert one.acquire(blocking=True, timeout=0.05) is None
    for step in (held.renew, held.release):
        redis.script_flush()
        assert step()


# -- a reply that was lost ---------------------------------------------------------------------------------------------


def test_calls_sent_twice_are_one(resending: Resending, kind: type[LeasedLock], other: LeasedLock) -> None:
    """Also a release, if another caller held it before the second was carried out."""
    one = kind(SyncSide(), resending, other.view)
    held = one.take()
    assert one.there().number == one.number(held)
    assert held.renew()
    resending.between = lambda: other.take().release()
    assert held.release() is True
    assert not held.lost


def test_a_release_that_failed_can_be_repeated(kind: type[LeasedLock], own_server: EmbeddedServer) -> None:
    """Its result is unknown until it is sent again."""
    with impatient_client(own_server.url) as client:
        one = kind(SyncSide(), client, client)
        held = one.take()
        own_server.freeze()
        with pytest.raises(RedisError), impatience():
            held.release()
        own_server.thaw()
        assert held.release() is True
        assert one.shown() is None


# -- with --------------------------------------------------------------------------------------------------------------


def test_hold_releases_at_the_end_of_any_block(one: LeasedLock) -> None:
    with one.hold() as held:
        assert one.acquire() is None
        assert one.number(held)
    with pytest.raises(KeyError), one.hold():
        raise KeyError
    with one.hold() as held:
        held.release()
        successor = one.take()
    assert successor.renew(), "released once"


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_hold_raises_when_it_is_taken(one: LeasedLock, timeout: float) -> None:
    one.take()
    with pytest.raises(NotAcquired, match=rf"{one.refusal}.* {timeout} seconds"), one.hold(timeout=timeout):
        pytest.fail("not held")
    assert one.waiting() == 0


def test_the_end_of_a_block_reports_a_loss(one: LeasedLock) -> None:
    """But the error of the block goes first."""
    with pytest.raises(LeaseLost), one.hold():
        one.lose()
    with pytest.raises(KeyError), one.hold():  # noqa: PT012 - what happens in the block is the test
        one.lose()
        raise KeyError


def test_an_error_of_redis_does_not_hide_that_of_the_block(
    kind: type[LeasedLock], side: SyncSide, own_server: EmbeddedServer
) -> None:
    client = side.client(own_server.url, retry=side.no_retry)
    one = kind(side, client, SyncSide().client(own_server.url))
    with pytest.raises(KeyError), one.hold():  # noqa: PT012 - as above
        own_server.kill()
        raise KeyError
    own_server.restart()
    with pytest.raises(RedisError), one.hold():
        own_server.kill()


# -- renewal -----------------------------------------------------------------------------------------------------------


def test_a_renewed_lease_lasts(one: LeasedLock, side: SyncSide, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewed again and again; then it is free at once, and nothing goes on in the background."""
    renew_often(monkeypatch)
    with one.hold(30, renew=True) as held:
        for _ in range(5):
            one.nearly_end()
            until(one.renewed)
        assert not held.lost
        assert held.lease_left > 20
        assert side.at_work() == 1
    assert one.shown() is None
    until(lambda: side.at_work() == 0)
    assert not held.lost


def test_a_release_ends_the_thread(kind: type[LeasedLock], redis: Redis) -> None:
    """Not only at its next renewal, or once the handle is unreachable."""
    side = SyncSide()
    held = kind(side, redis, redis).take(lease=600, renew=True)
    assert side.at_work() == 1
    held.release()
    until(lambda: side.at_work() == 0)
    assert held.release()


def test_renewal_ends_with_the_last_reference(one: LeasedLock, side: SyncSide, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that forgets its lock must not keep it from all others; also as a part of a cycle."""
    if side.is_async:
        renew_often(monkeypatch)  # a task looks when it would renew, a thread ends at once
    held = one.take(lease=30, renew=True)
    held.cycle = held
    assert side.at_work() == 1
    del held
    gc.collect()
    until(lambda: side.at_work() == 0)
    assert one.shown() is not None, "it lasts until its lease ends"


def test_a_loss_is_reported_once(one: LeasedLock, side: SyncSide, caplog: pytest.LogCaptureFixture) -> None:
    """By the flag, the callback and the log; a callback that fails is logged."""
    told: list[Any] = []

    def tell(held: Any) -> None:
        told.append(held)
        raise KeyError(held.identity)

    held = one.take(lease=0.6, renew=True, on_lost=tell)
    one.lose()
    until(lambda: told)
    until(lambda: side.at_work() == 0)
    assert held.lost
    with pytest.raises(LeaseLost):
        held.renew()
    assert held.release() is False
    assert told == [held]
    said = [record.message.split(":")[0] for record in caplog.records if record.name.startswith("celery_throttle")]
    assert said == ["lease_lost", "celery_throttle"]
    assert "on_lost of 'a' failed" in caplog.text


def test_a_dead_server_is_reported_when_the_lease_ends(
    kind: type[LeasedLock], side: SyncSide, own_server: EmbeddedServer
) -> None:
    told: list[Any] = []
    one = kind(side, side.client(own_server.url), SyncSide().client(own_server.url))
    held = one.take(lease=0.6, renew=True, on_lost=told.append)
    own_server.kill()
    until(lambda: told)
    assert held.lost
    assert held.lease_left == 0
    until(lambda: side.at_work() == 0)


def test_a_server_that_comes_back_in_time_is_no_loss(kind: type[LeasedLock], own_server: EmbeddedServer) -> None:
    """It stalls for a moment; renewal tries again before the lease ends."""
    told: list[Any] = []
    with impatient_client(own_server.url) as client:
        held = kind(SyncSide(), client, client).take(lease=30, on_lost=told.append)
        own_server.freeze()
        with impatience():
            assert (run(held.renew_quietly()) or 9) <= 1, "soon again"
        own_server.thaw()
        assert until(lambda: run(held.renew_quietly())) == pytest.approx(10), "a third of the lease"
        assert not told
        assert not held.lost
        assert held.release()


def test_a_release_during_a_renewal_is_no_loss(
    kind: type[LeasedLock], redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The renewal comes second, finds nothing, and reports no loss."""
    told: list[Any] = []
    held = kind(SyncSide(), redis, redis).take(on_lost=told.append)
    check = held._check_held

    def check_then_release() -> None:
        check()
        monkeypatch.undo()
        held.release()

    monkeypatch.setattr(held, "_check_held", check_then_release)
    assert run(held.renew_quietly()) is None
    assert not told
    assert not held.lost


# -- waiting -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("only_hints")
def test_release_wakes_the_waiting_caller(one: LeasedLock, other: LeasedLock, pool: ThreadPoolExecutor) -> None:
    """By a hint, long before the lease ends."""
    held = other.take(lease=600)
    future = pool.submit(one.acquire, blocking=True, timeout=HANGS_AFTER)
    until(lambda: one.waiting() == 1)
    held.release()
    assert one.number(future.result(HANGS_AFTER)) > other.number(held)
    until(lambda: one.waiting() == 0)


def test_connections_and_scripts_lost_while_waiting(
    one: LeasedLock, other: LeasedLock, redis: Redis, pool: ThreadPoolExecutor
) -> None:
    """The hints of a waiting call are on a connection of their own, which the server or a proxy may close."""
    held = other.take()
    future = pool.submit(one.acquire, blocking=True, timeout=HANGS_AFTER)
    until(lambda: one.waiting() == 1)
    redis.script_flush()
    redis.client_kill_filter(_type="pubsub")
    held.release()
    assert future.result(HANGS_AFTER)


def test_the_timeout_is_kept_and_waiting_costs_next_to_nothing(
    kind: type[LeasedLock], side: SyncSide, redis: Redis, server: EmbeddedServer
) -> None:
    """Polling would be a hundred attempts. A socket timeout that is shorter than the wait does not matter."""
    one = kind(side, side.client(server.url, socket_timeout=0.1), redis)
    one.take()
    for timeout in (0, 0.01, 0.7):
        started = time.monotonic()
        with commands(redis) as calls:
            assert one.acquire(blocking=True, timeout=timeout) is None
        assert timeout <= time.monotonic() - started < timeout + 10
        assert calls["evalsha"] <= 4
        assert sum(calls.values()) < 80
        assert one.waiting() == 0


def test_one_at_a_time_under_contention(one: LeasedLock, pool: ThreadPoolExecutor) -> None:
    """Each caller gets it in the end, never two at once, each with a greater number than the one before."""
    inside = threading.Lock()
    numbers: list[int] = []

    def work() -> None:
        for _ in range(10):
            with one.hold(timeout=HANGS_AFTER) as held:
                assert inside.acquire(blocking=False)
                numbers.append(one.number(held))
                inside.release()

    for future in [pool.submit(work) for _ in range(IDLE + 2)]:
        future.result(60)
    assert len(numbers) == 10 * (IDLE + 2)
    assert numbers == sorted(set(numbers))
    assert one.shown() is None
    until(lambda: listening(one.view) <= IDLE)


def test_a_hint_that_is_lost_costs_a_moment(
    one: LeasedLock, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It becomes free without a hint, long before the lease that was seen would end."""
    look_often(monkeypatch)
    one.take(lease=600)
    future = pool.submit(one.acquire, blocking=True, timeout=HANGS_AFTER)
    until(lambda: one.waiting() == 1)
    one.lose()
    assert future.result(HANGS_AFTER).renew()


def test_user_without_publish_rights_can_still_release(
    kind: type[LeasedLock],
    side: SyncSide,
    other: LeasedLock,
    server: EmbeddedServer,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may not ask for the subscribers either: the waiting caller finds out without a hint."""
    look_often(monkeypatch)
    user: dict[str, Any] = {"keys": ["*"], "commands": ["+@all", "-pubsub"], "reset_channels": True}
    other.view.acl_setuser("mute", enabled=True, nopass=True, **user)
    held = kind(side, side.client(server.url, username="mute", password="x"), other.view).take(lease=600)
    future = pool.submit(other.acquire, blocking=True, timeout=HANGS_AFTER)
    until(lambda: other.waiting() == 1)
    assert held.release()
    assert future.result(HANGS_AFTER)
    other.view.acl_deluser("mute")


# -- a task that is cancelled ------------------------------------------------------------------------------------------


@pytest.fixture
def awaited(kind: type[LeasedLock], aio_side: AsyncioSide, server: EmbeddedServer, redis: Redis) -> LeasedLock:
    return kind(aio_side, aio_side.client(server.url), redis)


@pytest.mark.parametrize("is_lost", [False, True])
def test_cancelled_acquire_gives_back_its_grant(
    awaited: LeasedLock,
    other: LeasedLock,
    aio_side: AsyncioSide,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_lost: bool,
) -> None:
    """The reply is on its way, or was not read yet: the next caller has it at once. A release that fails is logged."""
    granted: list[object] = []

    async def ask_and_wait(client: Any, call: Call) -> object:
        awaits = isinstance(client, AsyncRedis)
        if awaits and is_lost and granted:
            raise RedisConnectionError("gone")
        reply: object = await ask(client, call)
        if awaits and call.script.name.endswith("/acquire"):
            granted.append(reply)
            await asyncio.sleep(600)
        return reply

    for primitive in (lock, semaphore, leases):
        monkeypatch.setattr(primitive, "ask", ask_and_wait)
    task = aio_side.start(lambda: awaited.in_loop().acquire(lease=600))
    until(lambda: granted)
    assert awaited.shown() is not None
    aio_side.cancel(task)
    if is_lost:
        until(lambda: re.search("cannot (release|leave the line of) 'a': gone", caplog.text))
    else:
        assert other.acquire(blocking=True, timeout=HANGS_AFTER)


def test_a_cancelled_wait_leaves_it_to_others(awaited: LeasedLock, other: LeasedLock, aio_side: AsyncioSide) -> None:
    held = awaited.take(lease=600)
    task = aio_side.start(lambda: awaited.in_loop().acquire(blocking=True, timeout=HANGS_AFTER))
    until(lambda: awaited.waiting() == 1)
    aio_side.cancel(task)
    until(lambda: awaited.waiting() == 0 == aio_side.at_work())
    assert held.renew()
    held.release()
    assert other.take()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a task does not count how often it was cancelled")
def test_a_cancelled_wait_ends_although_the_client_drops_that(
    kind: type[LeasedLock], other: LeasedLock, aio_side: AsyncioSide, server: EmbeddedServer, redis: Redis
) -> None:
    """Before Python 3.12, `asyncio.wait_for` drops a cancellation that comes just when a command has been sent."""

    class Cancelling(AsyncConnection):
        async def _send_packed_command(self, command: Any) -> None:
            await super()._send_packed_command(command)
            if any(b"SUBSCRIBE" in part for part in command):
                task.cancel()

    held = other.take(lease=600)
    awaited = kind(aio_side, aio_side.client(server.url, connection_class=Cancelling, socket_timeout=60), redis)
    begin = asyncio.Event()

    async def acquire() -> Any:
        await begin.wait()
        return await awaited.in_loop().acquire(blocking=True, timeout=HANGS_AFTER)

    task = aio_side.start(acquire)
    aio_side.call(begin.set)
    until(task.done)
    assert task.cancelled()
    until(lambda: awaited.waiting() == 0)
    assert held.renew()


def test_a_cancelled_block_releases(awaited: LeasedLock, aio_side: AsyncioSide) -> None:
    inside = threading.Event()

    async def work() -> None:
        async with awaited.in_loop().hold(600):
            inside.set()
            await asyncio.sleep(600)

    task = aio_side.start(work)
    assert inside.wait(HANGS_AFTER)
    assert awaited.shown()
    aio_side.cancel(task)
    assert awaited.shown() is None


def test_a_cancelled_release_gives_back_all_the_same(awaited: LeasedLock, aio_side: AsyncioSide) -> None:
    held = awaited.take(lease=600)

    async def release() -> None:
        await held.thing._client.connection_pool.disconnect()  # so that it has to connect first
        task = asyncio.create_task(held.thing.release())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    aio_side.call(release)
    until(lambda: not leases._background)
    assert awaited.shown() is None
    assert held.release()
