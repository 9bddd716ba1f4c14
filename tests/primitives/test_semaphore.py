"""The fair semaphore: the number of permits, the line of those that wait, and the hints that wake them.

What holds for locks, too, is in test_lease.py; programs that die are in test_semaphore_lost.py.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import OutOfMemoryError

from celery_throttle.embedded import EmbeddedServer
from celery_throttle.primitives import AsyncFairSemaphore, FairSemaphore, PermitInfo
from celery_throttle.primitives import semaphore as module
from celery_throttle.primitives.driving import ask
from celery_throttle.primitives.mailbox import IDLE, Mailbox
from celery_throttle.primitives.semaphore_calls import Granted, Turn, Waits, hinted
from celery_throttle.store.scripts import Call, execute
from tests.primitives.pace import channels, listening
from tests.store.cost import commands
from tests.support.waiting import HANGS_AFTER, until

KEY = "{throttle}:3:semaphore"


@pytest.fixture
def two(make: Callable[..., Any]) -> Any:
    """A semaphore with two permits, of either side."""
    return make("FairSemaphore", "two", 2)


@pytest.fixture
def waiting(make: Callable[..., Any]) -> Any:
    """The semaphore of `one`, of either side."""
    return make("FairSemaphore", "one", 1)


@pytest.fixture
def one(redis: Redis) -> FairSemaphore:
    """A semaphore with one permit, for threads."""
    return FairSemaphore(redis, "one", 1)


def take(semaphore: Any, holder: str = "holder", **options: Any) -> Any:
    """Take a permit that must be free."""
    held = semaphore.acquire(holder, **{"blocking": False, "lease": 600, **options})
    assert held is not None
    return held


def refused(semaphore: Any) -> bool:
    """Return whether no permit is available now."""
    return semaphore.acquire(blocking=False) is None


def names(semaphore: Any) -> list[str]:
    """Return the holders of the permits."""
    return sorted(info.holder for info in semaphore.holders())


def wait_in_line(semaphore: Any, redis: Redis, pool: ThreadPoolExecutor, count: int) -> list[Future[Any]]:
    """Start acquires that wait, one after the other, each listening before the next."""
    futures = []
    for number in range(count):
        there = semaphore.waiting()
        futures.append(pool.submit(semaphore.acquire, f"{number}", 60))
        until(lambda: semaphore.waiting() > there)  # noqa: B023 - called at once
    until(lambda: listening(redis) >= semaphore.waiting())
    return futures


# -- so many permits ---------------------------------------------------------------------------------------------------


def test_as_many_holders_as_permits(two: Any, make: Callable[..., Any]) -> None:
    """The name is for people: two permits of one holder are two. Other names and prefixes have their own."""
    assert repr(two).endswith("FairSemaphore 'two'>")
    first, second = take(two, "me"), take(two, "me")
    assert refused(two)
    assert second.ticket > first.ticket
    assert names(two) == ["me", "me"]
    assert first.release()
    assert second.renew()
    third = take(two, "next")
    assert refused(two)
    assert third.ticket > second.ticket
    assert (third.name, third.holder) == ("two", "next")
    assert names(two) == ["me", "next"]
    (info,) = [info for info in two.holders() if info.holder == "next"]
    assert isinstance(info, PermitInfo)
    assert re.fullmatch(rf"next since .*, lease ends in .*, ticket {third.ticket}", str(info))
    assert two.waiting() == 0
    take(make("FairSemaphore", "two:two", 1))
    take(make("FairSemaphore", "two", 1, prefix="b"))


def test_the_limit_of_the_object_counts_until_one_is_set(make: Callable[..., Any], redis: Redis) -> None:
    """Then that one counts for all, until it is reset."""
    three, one = make("FairSemaphore", "a", 3), make("FairSemaphore", "a", 1)
    assert (three.limit(), one.limit()) == (3, 1)
    three.set_limit(2)
    assert (three.limit(), one.limit()) == (2, 2)
    take(one)
    take(one)
    assert refused(three)
    three.set_limit(None)
    assert (three.limit(), one.limit()) == (3, 1)
    assert refused(one)
    take(three)
    assert not redis.exists(f"{KEY}:limit:a")


def test_a_limit_that_wakes_more_than_one_call_reaches(make: Callable[..., Any], redis: Redis) -> None:
    """All of them have it when set_limit returns, in order, and no call runs long or gets a permit before them."""
    one, many = make("FairSemaphore", "one", 1), make("FairSemaphore", "one", 1000)
    take(one)
    for number in range(600):
        execute(redis, one._calls.acquire(one._calls.turn(f"{number}", 60), 60, "nobody"))
    assert many.acquire("barges", blocking=False) is None
    assert len(one.holders()) == 257
    one.set_limit(1000)
    holders = sorted(one.holders(), key=lambda info: info.ticket)
    assert [info.holder for info in holders] == ["holder", *map(str, range(600))]


def test_every_key_ends_by_itself(one: FairSemaphore, redis: Redis) -> None:
    """Also if all programs die: the holders, the waiting ones, and the proof that a release was carried out."""
    one.set_limit(2)
    take(one, lease=60).release()
    take(one, lease=600)
    take(one, lease=60)
    execute(redis, one._calls.acquire(one._calls.turn("waits", 60), 6, "nobody"))
    assert one.waiting() == 1
    left = {key.decode().split(":")[3]: redis.pttl(key) / 1000 for key in redis.scan_iter()}
    assert left.pop("limit") < 0
    assert set(left) == {"leases", "holders", "line", "looks", "waiters", "released"}
    assert all(600 < left[part] <= 1200 for part in ("leases", "holders")), "no sooner than the last lease"
    assert all(5 < left[part] <= 12 for part in ("line", "looks", "waiters"))
    assert 0 < left["released"] <= 60


# -- the line ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("only_hints")
def test_first_come_first_served(waiting: Any, redis: Redis, pool: ThreadPoolExecutor) -> None:
    """Each by a hint, and only the first gets it."""
    held = take(waiting)
    futures = wait_in_line(waiting, redis, pool, 5)
    for number, future in enumerate(futures):
        before = held.ticket
        held.release()
        held = future.result(HANGS_AFTER)
        assert held.holder == f"{number}"
        assert held.ticket > before
        assert sum(other.done() for other in futures) == number + 1
    held.release()
    assert waiting.waiting() == 0


@pytest.mark.usefixtures("only_hints")
def test_the_end_of_a_lease_wakes_the_first_in_line(waiting: Any, redis: Redis, pool: ThreadPoolExecutor) -> None:
    """Without a release. Only the first looks then."""
    late = take(waiting)
    first, second = wait_in_line(waiting, redis, pool, 2)
    late.renew(0.3)
    for channel in channels(redis):
        redis.publish(channel, "look when it ends now")
    held = first.result(HANGS_AFTER)
    assert late.release() is False
    assert not second.done()
    held.release()
    second.result(HANGS_AFTER)


# -- hints -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "asked_ago", "is_granted"),
    [
        ("30000 7 ffff me", 0, True),
        ("30000 7 ffff me", 9, True),
        ("30000 7 ffff me", 11, False),  # frozen in between, so it asks for a whole lease
        ("30000 6 ffff me", 0, False),  # of an earlier place in line
        ("30000 7 eeee me", 0, False),  # for another caller, who had the mailbox before
        ("", 0, False),
        (None, 0, False),
    ],
)
def test_a_hint_is_a_permit_if_it_is_meant_and_fresh(hint: str | None, asked_ago: float, is_granted: bool) -> None:
    asked_at = time.monotonic() - asked_ago
    granted = hinted(hint, Turn("ffff me", "me", 30), Waits(7, 30), asked_at)
    assert granted == (Granted(7, asked_at + 30) if is_granted else None)


def test_granted_at_the_last_moment_is_kept(one: FairSemaphore, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is up, but before it can leave the line the permit is its own."""
    held = take(one)

    async def nothing(_: Mailbox, timeout: float) -> None:
        time.sleep(timeout)  # noqa: ASYNC251 - the client is one that blocks
        held.release()

    monkeypatch.setattr(Mailbox, "wait", nothing)
    last = one.acquire("last", timeout=0.5)
    assert last is not None
    assert last.lease_left > 50
    assert one.holders()[0].lease_left > 50, "the whole lease, not only the time to claim it"
    last.release()
    assert one.holders() == ()
    assert redis.zcard(f"{KEY}:line:one") == 0


@pytest.mark.parametrize("granted", [False, True])
def test_interrupted_caller_leaves_nothing(
    one: FairSemaphore, redis: Redis, monkeypatch: pytest.MonkeyPatch, granted: bool
) -> None:
    """Ctrl-C while it waits, also if the permit has just become its own: the next in line gets it."""
    held = take(one)
    wait = Mailbox.wait

    async def interrupt(mailbox: Mailbox, timeout: float) -> None:
        assert timeout > 0
        assert await wait(mailbox, 5) == "", "subscribed"
        if granted:
            held.release()
            assert names(one) == ["interrupted"]
        raise KeyboardInterrupt

    monkeypatch.setattr(Mailbox, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        one.acquire("interrupted", lease=600)
    monkeypatch.undo()
    until(lambda: not channels(redis))  # closed, and not only forgotten: the traceback has it still
    assert caught.tb is not None
    assert one.waiting() == 0
    assert names(one) == ([] if granted else ["holder"])


# -- what it costs -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("only_hints")
def test_a_hand_over_takes_one_call(
    one: FairSemaphore, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release; the waiting caller need not ask."""
    held = take(one)
    asked: list[str] = []

    async def ask_and_count(client: Redis, call: Call) -> object:
        reply: object = await ask(client, call)
        asked.append(call.script.name)
        return reply

    monkeypatch.setattr(module, "ask", ask_and_count)
    future = pool.submit(one.acquire, "next", 60)
    until(lambda: asked == ["semaphore/acquire"] * 2)  # a place, and a look after the subscription
    held.release()
    assert future.result(HANGS_AFTER)
    assert asked.count("semaphore/acquire") == 2


def test_connections_are_kept_but_few(waiting: Any, redis: Redis, pool: ThreadPoolExecutor) -> None:
    take(waiting)
    for timeout, count in ((0.4, IDLE + 6), (0.2, IDLE)):
        futures = [pool.submit(waiting.acquire, timeout=timeout) for _ in range(count)]
        assert [future.result(HANGS_AFTER) for future in futures] == [None] * count
        until(lambda: 0 < listening(redis) <= IDLE)
    with commands(redis) as calls:
        assert waiting.acquire(timeout=0.1) is None
    assert "subscribe" not in calls, "the mailbox of a wait before"


def test_connections_end_with_their_semaphore(one: FairSemaphore, redis: Redis) -> None:
    take(one)
    assert one.acquire(timeout=0.05) is None
    assert listening(redis) == 1
    one._mailboxes._idle.clear()
    until(lambda: listening(redis) == 0)


def test_each_loop_has_its_own_connections(server: EmbeddedServer, redis: Redis) -> None:
    """A semaphore that is made at import, used by one loop after the other; its connections end with its client."""
    client = AsyncRedis.from_url(server.url)
    one = AsyncFairSemaphore(client, "one", 1)

    async def waited() -> None:
        held = await one.acquire()
        assert held is not None
        assert await one.acquire(timeout=0.05) is None
        await held.release()
        await client.connection_pool.disconnect()

    for _ in range(2):
        asyncio.run(waited())
    until(lambda: not channels(redis))


# -- trouble -----------------------------------------------------------------------------------------------------------


def test_a_full_server_lets_renew_look_and_release(
    one: FairSemaphore, redis: Any, pool: ThreadPoolExecutor, full: Callable[[], object]
) -> None:
    """No new caller gets a permit or a place, but no holder loses one; released permits go to the next in line."""
    held = take(one)
    (future,) = wait_in_line(one, redis, pool, 1)
    look = one._calls.acquire(one._calls.turn("waits, too", 60), 60, "nobody")
    execute(redis, look)
    full()
    with pytest.raises(OutOfMemoryError):
        one.acquire(timeout=5)
    script: Any = look.eval()
    assert redis.execute_command(*script)[0] == 0
    assert held.renew()
    assert held.release()
    following = future.result(HANGS_AFTER)
    assert following.renew()
    one.set_limit(2)
    for _ in range(2):
        assert redis.execute_command(*script)[0] == 1
    assert following.release()
