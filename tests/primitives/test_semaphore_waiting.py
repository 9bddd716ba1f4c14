"""Waiting for a permit: in line, in order, without asking all the time."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis

from celery_throttle.primitives import FairSemaphore, semaphore
from celery_throttle.primitives.driving import ask, run
from celery_throttle.primitives.mailbox import Mailbox
from celery_throttle.primitives.semaphore_calls import IDLE
from tests.primitives.hints import channels, listening
from tests.primitives.pace import end_permits, look_often
from tests.store.cost import commands
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_throttle.embedded import EmbeddedServer
    from celery_throttle.primitives import HeldPermit
    from celery_throttle.store.scripts import Call


@pytest.fixture
def one(redis: Redis) -> FairSemaphore:
    """A semaphore with one permit."""
    return FairSemaphore(redis, "one", 1)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as threads:
        yield threads


@pytest.fixture
def only_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waiting callers not look by themselves."""
    monkeypatch.setattr("celery_throttle.primitives.lease._LOOK_AGAIN", 600.0)
    monkeypatch.setattr(semaphore, "STAY", 600.0)


def awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a coroutine function that does the same."""

    async def call(*args: Any) -> Any:
        return function(*args)

    return call


@pytest.fixture
def no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waiting callers get no hint."""

    def deaf(_: Mailbox, timeout: float) -> None:
        time.sleep(timeout)

    monkeypatch.setattr(Mailbox, "wait", awaited(deaf))


def wait_in_line(waiting: FairSemaphore, pool: ThreadPoolExecutor, count: int, **options: Any) -> list[Future[Any]]:
    """Start acquires that wait, one after the other, each listening before the next."""
    futures = []
    for number in range(count):
        there = waiting.waiting()
        futures.append(pool.submit(waiting.acquire, f"{number}", 60, **options))
        until(lambda: waiting.waiting() > there)  # noqa: B023 - called at once
    until(lambda: listening(waiting._client) >= waiting.waiting())
    return futures


def got(future: Future[HeldPermit | None]) -> HeldPermit:
    held = future.result(20)
    assert held is not None
    return held


@pytest.mark.usefixtures("only_hints")
def test_first_come_first_served(one: FairSemaphore, pool: ThreadPoolExecutor) -> None:
    """Each by a hint, and only the first gets it."""
    held = one.acquire("holder")
    assert held is not None
    futures = wait_in_line(one, pool, 12)
    for future in futures:
        before = held.ticket
        held.release()
        held = got(future)
        assert held.ticket > before
        assert sum(other.done() for other in futures) == futures.index(future) + 1
    held.release()
    assert one.waiting() == 0


@pytest.mark.usefixtures("only_hints")
def test_the_permit_is_the_next_ones_at_once(one: FairSemaphore, pool: ThreadPoolExecutor) -> None:
    """No caller can come between, though the next one has not read it yet."""
    held = one.acquire("holder")
    assert held is not None
    (future,) = wait_in_line(one, pool, 1)
    held.release()
    assert [info.holder for info in one.holders()] == ["0"]
    assert one.acquire(blocking=False) is None
    assert got(future).ticket == one.holders()[0].ticket


def test_no_barging(redis: Redis, pool: ThreadPoolExecutor) -> None:
    """A permit that is free for a waiter of another opinion about the limit is not free for others."""
    one, two = FairSemaphore(redis, "a", 1), FairSemaphore(redis, "a", 2)
    held = one.acquire()
    assert held is not None
    (future,) = wait_in_line(one, pool, 1)
    assert two.acquire("barges", blocking=False) is None, "the second permit goes to the waiting caller"
    assert got(future).holder == "0"


@pytest.mark.usefixtures("only_hints")
def test_a_greater_limit_wakes_at_once(one: FairSemaphore, pool: ThreadPoolExecutor) -> None:
    one.acquire("holder")
    futures = wait_in_line(one, pool, 5)
    one.set_limit(4)
    assert [got(future).holder for future in futures[:3]] == ["0", "1", "2"]
    assert one.waiting() == 2
    assert [info.holder for info in one.holders()].count("3") == 0
    one.set_limit(9)
    assert [got(future).holder for future in futures[3:]] == ["3", "4"]


def test_a_limit_that_wakes_more_than_one_call_reaches(one: FairSemaphore, redis: Redis) -> None:
    """All of them have it when set_limit returns, in order, and no call runs long."""
    one.acquire("holder")
    calls = one._calls
    for number in range(600):
        turn = calls.turn(f"{number}", 60)
        redis.execute_command(*calls.acquire(turn, 60, "nobody").eval())  # type: ignore[no-untyped-call]
    assert FairSemaphore(redis, "one", 1000).acquire("barges", blocking=False) is None
    assert len(one.holders()) == 257
    one.set_limit(1000)
    holders = sorted(one.holders(), key=lambda info: info.ticket)
    assert [info.holder for info in holders] == ["holder", *map(str, range(600))]


@pytest.mark.usefixtures("only_hints")
def test_the_end_of_a_lease_wakes_the_first_in_line(one: FairSemaphore, redis: Redis, pool: ThreadPoolExecutor) -> None:
    """Without a release. Only the first looks then."""
    late = one.acquire("late", lease=600)
    first, second = wait_in_line(one, pool, 2)
    assert late is not None
    late.renew(0.3)
    for channel in channels(redis):
        redis.publish(channel, "look when it ends now")
    held = got(first)
    assert late.release() is False
    assert not second.done()
    held.release()
    got(second)


@pytest.mark.usefixtures("no_hints")
def test_a_hint_that_is_lost_costs_a_moment(
    one: FairSemaphore, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller without the hint finds its permit at its next look, and no other got it."""
    look_often(monkeypatch)
    held = one.acquire("holder", lease=600)
    assert held is not None
    futures = [pool.submit(one.acquire, "0", 60)]
    until(lambda: one.waiting() == 1)
    futures.append(pool.submit(one.acquire, "1", 60))
    until(lambda: one.waiting() == 2)
    held.release()
    assert got(futures[0]).release()
    assert got(futures[1]).renew()


def test_a_hint_that_comes_late_is_no_permit(one: FairSemaphore, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was frozen in between: the hint may be out of date, so it asks."""
    one.acquire("holder", lease=600)
    asked: list[str] = []

    def says(mailbox: Mailbox, timeout: float) -> str:
        asked.append(mailbox.channel)
        line: Any = redis.zrange("{throttle}:2:semaphore:line:one", 0, 0, withscores=True)
        ((permit, ticket),) = line
        time.sleep(max(timeout, 0.2))
        return f"300 {ticket:.0f} {permit.decode()}"

    monkeypatch.setattr(Mailbox, "wait", awaited(says))
    assert one.acquire("late", timeout=0.5, lease=0.3) is None
    assert asked
    assert one.waiting() == 0


def test_a_hint_of_an_earlier_place_in_line_is_no_permit(
    one: FairSemaphore, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was frozen before it could look: others have the permit, it waits again, and only then reads the hint."""
    held = one.acquire("holder", lease=600)
    assert held is not None
    heard: list[str | None] = []
    wait = Mailbox.wait

    async def lose_the_first(mailbox: Mailbox, timeout: float) -> str | None:
        heard.append(await wait(mailbox, timeout))
        if len(heard) == 1:
            held.release()
            end_permits(redis, "one")
            assert one.acquire("other", blocking=False) is not None
        return heard[-1]

    monkeypatch.setattr(Mailbox, "wait", lose_the_first)
    assert one.acquire("late", timeout=1) is None
    assert any(hint and hint.endswith("late") for hint in heard)
    assert [info.holder for info in one.holders()] == ["other"]


def test_hint_for_another_caller_is_no_permit(one: FairSemaphore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mailbox is used again: a hint for the one before may lie in it."""
    one.acquire("holder")

    def says(_: Mailbox, timeout: float) -> str:
        time.sleep(min(timeout, 0.02))
        return "60000 1 ffffffffffffffffx"

    monkeypatch.setattr(Mailbox, "wait", awaited(says))
    assert one.acquire("x", timeout=0.2) is None


def test_the_timeout_is_kept(one: FairSemaphore) -> None:
    """And one whose time is up has left the line."""
    one.acquire()
    for timeout in (0, 0.01, 0.3):
        started = time.monotonic()
        assert one.acquire(timeout=timeout) is None
        assert timeout <= time.monotonic() - started < timeout + 10
        assert one.waiting() == 0


def test_granted_at_the_last_moment_is_kept(one: FairSemaphore, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is up, but before it can leave the line the permit is its own."""
    held = one.acquire("holder")
    assert held is not None

    def nothing(_: Mailbox, timeout: float) -> None:
        time.sleep(timeout)
        held.release()

    monkeypatch.setattr(Mailbox, "wait", awaited(nothing))
    last = one.acquire("last", timeout=0.5)
    assert last is not None
    assert last.lease_left > 50
    assert one.holders()[0].lease_left > 50, "the whole lease, not only the time to claim it"
    last.release()
    assert one.holders() == ()
    assert redis.zcard("{throttle}:2:semaphore:line:one") == 0


@pytest.mark.parametrize("granted", [False, True])
def test_interrupted_caller_leaves_nothing(
    one: FairSemaphore, redis: Redis, monkeypatch: pytest.MonkeyPatch, granted: bool
) -> None:
    """Ctrl-C while it waits, also if the permit has just become its own: the next in line gets it."""
    held = one.acquire("holder")
    assert held is not None

    wait = Mailbox.wait

    async def interrupt(mailbox: Mailbox, timeout: float) -> None:
        assert timeout > 0
        assert await wait(mailbox, 5) == "", "subscribed"
        if granted:
            held.release()
            assert [info.holder for info in one.holders()] == ["interrupted"]
        raise KeyboardInterrupt

    monkeypatch.setattr(Mailbox, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        one.acquire("interrupted", lease=600)
    monkeypatch.undo()
    until(lambda: not channels(redis))  # closed, and not only forgotten: the traceback has it still
    assert caught.tb is not None
    assert one.waiting() == 0
    assert [info.holder for info in one.holders()] == ([] if granted else ["holder"])


def test_a_socket_timeout_shorter_than_the_wait_does_not_matter(redis: Redis, server: EmbeddedServer) -> None:
    with Redis.from_url(server.url, socket_timeout=0.1) as client:
        one = FairSemaphore(client, "one", 1)
        one.acquire()
        started = time.monotonic()
        assert one.acquire(timeout=0.7) is None
        assert 0.7 <= time.monotonic() - started < 10
        assert redis.ping()


def test_waiting_costs_next_to_nothing(one: FairSemaphore, redis: Redis) -> None:
    """Three calls; polling would be a hundred."""
    one.acquire()

    async def subscribe() -> None:
        async with one._mailboxes.one() as mailbox:
            assert await mailbox.wait(5) == "", "subscribed"

    run(subscribe())
    with commands(redis) as calls:
        one.acquire(timeout=1)
    assert calls["evalsha"] <= 3
    assert "subscribe" not in calls, "the mailbox of the wait before"
    assert "eval" not in calls


@pytest.mark.usefixtures("only_hints")
def test_a_hand_over_takes_one_call(
    one: FairSemaphore, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release; the waiting caller need not ask."""
    held = one.acquire("holder")
    assert held is not None
    asked: list[str] = []

    async def ask_and_count(client: Redis, call: Call) -> object:
        reply: object = await ask(client, call)
        asked.append(call.script.name)
        return reply

    monkeypatch.setattr(semaphore, "ask", ask_and_count)
    future = pool.submit(one.acquire, "next", 60)
    until(lambda: asked == ["semaphore/acquire"] * 2)  # a place, and a look after the subscription
    held.release()
    assert got(future).holder == "next"
    assert asked.count("semaphore/acquire") == 2


def test_connections_are_kept_but_few(one: FairSemaphore, redis: Redis, pool: ThreadPoolExecutor) -> None:
    one.acquire()
    futures = [pool.submit(one.acquire, timeout=0.4) for _ in range(IDLE + 6)]
    assert [future.result(20) for future in futures] == [None] * len(futures)
    until(lambda: 0 < listening(redis) <= IDLE)
    for future in [pool.submit(one.acquire, timeout=0.2) for _ in range(IDLE)]:
        assert future.result(20) is None
    assert listening(redis) <= IDLE
    one._mailboxes._idle.clear()
    until(lambda: listening(redis) == 0)


def test_never_more_than_the_limit_and_all_get_it(redis: Redis, pool: ThreadPoolExecutor) -> None:
    three = FairSemaphore(redis, "three", 3)
    inside, counted = threading.Semaphore(3), []

    def work() -> None:
        for _ in range(20):
            with three.hold(timeout=60) as held:
                assert inside.acquire(blocking=False)
                counted.append(held.ticket)
                inside.release()

    for future in [pool.submit(work) for _ in range(8)]:
        future.result(60)
    assert len(set(counted)) == 160
    assert three.waiting() == 0
    assert three.holders() == ()
    assert not [key for key in redis.scan_iter() if b":released:" not in key]
