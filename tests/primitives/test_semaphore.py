"""The fair semaphore: the number of permits, the line of those that wait, and the hints that wake them.

What holds for locks, too, is in test_lease.py; programs that die are in test_semaphore_lost.py.
"""

from __future__ import annotations

import asyncio
import re
import threading
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
from celery_throttle.primitives.driving import ask, run, settled
from celery_throttle.primitives.mailbox import IDLE, Mailbox
from celery_throttle.store.scripts import Call, execute
from tests.primitives.hints import channels, listening
from tests.primitives.pace import end_permits, look_often
from tests.primitives.resending import Resending
from tests.store.cost import commands
from tests.support.waiting import until

KEY = "{throttle}:2:semaphore"


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


def keys(client: Redis, *, receipts: bool = False) -> set[str]:
    return {key.decode() for key in client.scan_iter() if receipts or b":released:" not in key}


def awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a coroutine function that does the same."""

    async def call(*args: Any) -> Any:
        return function(*args)

    return call


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


def test_as_many_holders_as_permits(two: Any) -> None:
    """The name is for people: two permits of one holder are two."""
    first, second = take(two, "me"), take(two, "me")
    assert refused(two)
    assert second.ticket > first.ticket
    assert names(two) == ["me", "me"]
    assert first.release()
    assert second.renew()
    third = take(two, "next")
    assert refused(two)
    assert third.ticket > second.ticket
    assert names(two) == ["me", "next"]


def test_handle_and_holders_have_the_data_of_a_permit(two: Any) -> None:
    held = take(two, "web-1")
    assert (held.name, held.holder) == ("two", "web-1")
    assert repr(two).endswith("FairSemaphore 'two'>")
    (info,) = two.holders()
    assert isinstance(info, PermitInfo)
    assert re.fullmatch(r"web-1 since .*, lease ends in .*, ticket \d+", str(info))
    assert two.waiting() == 0


def test_names_and_prefixes_do_not_meet(make: Callable[..., Any]) -> None:
    for semaphore in (
        make("FairSemaphore", "a", 1),
        make("FairSemaphore", "a:a", 1),
        make("FairSemaphore", "a", 1, prefix="b"),
    ):
        take(semaphore)
        assert refused(semaphore)


def test_permit_of_another_holder_cannot_be_released(one: FairSemaphore, redis: Redis) -> None:
    """Not with its name, and not with that of one that was reclaimed."""
    take(one, "me")
    impostor = FairSemaphore(redis, "one", 1)._calls.turn("me", None)
    for call in (one._calls.release(impostor), one._calls.renew(impostor, 60)):
        assert execute(redis, call) == 0
    assert names(one) == ["me"]


# -- how many permits --------------------------------------------------------------------------------------------------


def test_the_limit_of_the_object_counts_until_one_is_set(make: Callable[..., Any], redis: Redis) -> None:
    """Then that one counts for all, until it is reset."""
    three, one = make("FairSemaphore", "a", 3), make("FairSemaphore", "a", 1)
    assert (three.limit(), one.limit()) == (3, 1)
    three.set_limit(2)
    assert (three.limit(), one.limit()) == (2, 2)
    assert make("FairSemaphore", "a", 9).limit() == 2
    take(one)
    take(one)
    assert refused(three)
    three.set_limit(None)
    assert (three.limit(), one.limit()) == (3, 1)
    assert refused(one)
    take(three)
    assert f"{KEY}:limit:a" not in keys(redis)


def test_a_limit_that_wakes_more_than_one_call_reaches(make: Callable[..., Any], redis: Redis) -> None:
    """All of them have it when set_limit returns, in order, and no call runs long."""
    one, many = make("FairSemaphore", "one", 1), make("FairSemaphore", "one", 1000)
    take(one)
    for number in range(600):
        execute(redis, one._calls.acquire(one._calls.turn(f"{number}", 60), 60, "nobody"))
    assert many.acquire("barges", blocking=False) is None
    assert len(one.holders()) == 257
    one.set_limit(1000)
    holders = sorted(one.holders(), key=lambda info: info.ticket)
    assert [info.holder for info in holders] == ["holder", *map(str, range(600))]


# -- keys --------------------------------------------------------------------------------------------------------------


def test_nothing_stays_when_the_work_is_done(two: Any, redis: Redis) -> None:
    """Except, for a minute, the proof that a release was carried out."""
    with two.hold(), two.hold():
        assert two.acquire(timeout=0.05) is None
        assert keys(redis) == {f"{KEY}:{part}:two" for part in ("leases", "holders")}
    assert keys(redis) == set()
    left = keys(redis, receipts=True)
    assert len(left) == 2
    assert all(0 < redis.pttl(key) <= 60_000 for key in left)


def test_every_key_ends_by_itself(one: FairSemaphore, redis: Redis) -> None:
    """Also if all programs die: the holders, and the waiting ones."""
    one.set_limit(2)
    take(one, lease=600)
    take(one, lease=60)
    execute(redis, one._calls.acquire(one._calls.turn("waits", 60), 6, "nobody"))
    assert one.waiting() == 1
    left = {key.split(":")[3]: redis.pttl(key) / 1000 for key in keys(redis) - {f"{KEY}:limit:one"}}
    assert set(left) == {"leases", "holders", "line", "looks", "waiters"}
    assert all(600 < left[part] <= 1200 for part in ("leases", "holders")), "no sooner than the last lease"
    assert all(5 < left[part] <= 12 for part in ("line", "looks", "waiters"))


# -- a reply that was lost ---------------------------------------------------------------------------------------------


def test_a_place_in_line_asked_for_twice_is_one(resending: Resending) -> None:
    one = FairSemaphore(resending, "one", 1)
    held = take(one)
    seen: list[int] = []
    resending.between = lambda: seen.append(resending.zcard(f"{KEY}:line:one"))
    assert one.acquire(timeout=0.1) is None
    assert set(seen) <= {0, 1}
    assert 1 in seen
    assert one.waiting() == 0
    assert held.renew()


def test_acquire_sent_again_after_a_renewal_takes_nothing_away(one: FairSemaphore, redis: Redis) -> None:
    calls = one._calls
    turn = calls.turn("me", 10)
    for call in (calls.acquire(turn), calls.renew(turn, 100), calls.acquire(turn)):
        execute(redis, call)
    assert one.holders()[0].lease_left > 90


# -- the line ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("only_hints")
def test_first_come_first_served(waiting: Any, redis: Redis, pool: ThreadPoolExecutor) -> None:
    """Each by a hint, and only the first gets it."""
    held = take(waiting)
    futures = wait_in_line(waiting, redis, pool, 12)
    for number, future in enumerate(futures):
        before = held.ticket
        held.release()
        held = future.result(20)
        assert held.holder == f"{number}"
        assert held.ticket > before
        assert sum(other.done() for other in futures) == number + 1
    held.release()
    assert waiting.waiting() == 0


def test_no_barging(make: Callable[..., Any], redis: Redis, pool: ThreadPoolExecutor) -> None:
    """A permit that is free for a waiter of another opinion about the limit is not free for others."""
    one, two = make("FairSemaphore", "a", 1), make("FairSemaphore", "a", 2)
    take(one)
    (future,) = wait_in_line(one, redis, pool, 1)
    assert two.acquire("barges", blocking=False) is None, "the second permit goes to the waiting caller"
    assert future.result(20).holder == "0"


@pytest.mark.usefixtures("only_hints")
def test_the_end_of_a_lease_wakes_the_first_in_line(waiting: Any, redis: Redis, pool: ThreadPoolExecutor) -> None:
    """Without a release. Only the first looks then."""
    late = take(waiting)
    first, second = wait_in_line(waiting, redis, pool, 2)
    late.renew(0.3)
    for channel in channels(redis):
        redis.publish(channel, "look when it ends now")
    held = first.result(20)
    assert late.release() is False
    assert not second.done()
    held.release()
    second.result(20)


def test_a_caller_without_hints_keeps_its_place(
    waiting: Any, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds its permit at its next look, and no other got it."""

    async def deaf(mailbox: Mailbox, timeout: float) -> None:
        await settled((asyncio if mailbox._awaits else time).sleep(timeout))

    monkeypatch.setattr(Mailbox, "wait", deaf)
    look_often(monkeypatch)
    held = take(waiting)
    futures = []
    for number in range(2):
        futures.append(pool.submit(waiting.acquire, f"{number}", 60))
        until(lambda: waiting.waiting() == len(futures))
    held.release()
    assert futures[0].result(20).release()
    assert futures[1].result(20).renew()


# -- hints that mean another -------------------------------------------------------------------------------------------


def test_a_hint_that_comes_late_is_no_permit(one: FairSemaphore, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was frozen in between: the hint may be out of date, so it asks."""
    take(one)
    asked: list[str] = []

    def says(mailbox: Mailbox, timeout: float) -> str:
        asked.append(mailbox.channel)
        line: Any = redis.zrange(f"{KEY}:line:one", 0, 0, withscores=True)
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
    held = take(one)
    heard: list[str | None] = []
    wait = Mailbox.wait

    async def lose_the_first(mailbox: Mailbox, timeout: float) -> str | None:
        heard.append(await wait(mailbox, timeout))
        if len(heard) == 1:
            held.release()
            end_permits(redis, "one")
            take(one, "other")
        return heard[-1]

    monkeypatch.setattr(Mailbox, "wait", lose_the_first)
    assert one.acquire("late", timeout=1) is None
    assert any(hint and hint.endswith("late") for hint in heard)
    assert names(one) == ["other"]


def test_hint_for_another_caller_is_no_permit(one: FairSemaphore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mailbox is used again: a hint for the one before may lie in it."""
    take(one)

    def says(_: Mailbox, timeout: float) -> str:
        time.sleep(min(timeout, 0.02))
        return "60000 1 ffffffffffffffffx"

    monkeypatch.setattr(Mailbox, "wait", awaited(says))
    assert one.acquire("x", timeout=0.2) is None


def test_granted_at_the_last_moment_is_kept(one: FairSemaphore, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is up, but before it can leave the line the permit is its own."""
    held = take(one)

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


def test_waiting_costs_next_to_nothing(one: FairSemaphore, redis: Redis) -> None:
    """Three calls; polling would be a hundred."""
    take(one)

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
    assert future.result(20)
    assert asked.count("semaphore/acquire") == 2


def test_connections_are_kept_but_few(waiting: Any, redis: Redis, pool: ThreadPoolExecutor) -> None:
    take(waiting)
    for timeout, count in ((0.4, IDLE + 6), (0.2, IDLE)):
        futures = [pool.submit(waiting.acquire, timeout=timeout) for _ in range(count)]
        assert [future.result(20) for future in futures] == [None] * count
        until(lambda: 0 < listening(redis) <= IDLE)


def test_connections_end_with_their_semaphore(one: FairSemaphore, redis: Redis) -> None:
    take(one)
    assert one.acquire(timeout=0.05) is None
    assert listening(redis) == 1
    one._mailboxes._idle.clear()
    until(lambda: listening(redis) == 0)


def test_never_more_than_the_limit_and_all_get_it(
    make: Callable[..., Any], redis: Redis, pool: ThreadPoolExecutor
) -> None:
    three = make("FairSemaphore", "three", 3)
    inside, counted = threading.Semaphore(3), []

    def work() -> None:
        for _ in range(20):
            with three.hold(timeout=60) as held:
                assert inside.acquire(blocking=False)
                counted.append(held.ticket)
                inside.release()

    for future in [pool.submit(work) for _ in range(IDLE + 4)]:
        future.result(60)
    assert len(set(counted)) == 20 * (IDLE + 4)
    assert three.waiting() == 0
    assert three.holders() == ()
    assert not keys(redis)
    until(lambda: len(channels(redis)) <= IDLE)


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


def test_a_full_server_lets_renew_look_and_release(own_server: EmbeddedServer, pool: ThreadPoolExecutor) -> None:
    """No new caller gets a permit or a place, but no holder loses one; released permits go to the next in line."""
    with Redis.from_url(own_server.url) as client:
        one = FairSemaphore(client, "one", 1)
        held = take(one)
        (future,) = wait_in_line(one, client, pool, 1)
        look = one._calls.acquire(one._calls.turn("waits, too", 60), 60, "nobody")
        execute(client, look)
        client.config_set("maxmemory", 1)
        with pytest.raises(OutOfMemoryError):
            one.acquire(timeout=5)
        script: Any = look.eval()
        assert client.execute_command(*script)[0] == 0
        assert held.renew()
        assert held.release()
        following = future.result(20)
        assert following.renew()
        one.set_limit(2)
        for _ in range(2):
            assert client.execute_command(*script)[0] == 1
        assert following.release()


def test_user_without_publish_rights_grants_without_a_hint(
    one: FairSemaphore, redis: Redis, server: EmbeddedServer, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_often(monkeypatch)
    redis.acl_setuser("mute", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-pubsub"], reset_channels=True)
    with Redis.from_url(server.url, username="mute", password="x") as client:
        held = take(FairSemaphore(client, "one", 1))
        (future,) = wait_in_line(one, redis, pool, 1)
        assert held.release()
        assert names(one) == ["0"]
        assert future.result(20)
    redis.acl_deluser("mute")
