"""The fair semaphore: its holders, their leases, the number of permits, and the powers of a late holder."""

from __future__ import annotations

import inspect
import os
import socket
import textwrap
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis
from redis.exceptions import OutOfMemoryError, RedisError

from celery_throttle.errors import ConfigurationError, LeaseLost, NotAcquired
from celery_throttle.primitives import FairSemaphore, PermitInfo
from tests.primitives.faults import forgetful_client, impatience, impatient_client, lose_a_reply
from tests.primitives.hints import channels
from tests.primitives.pace import end_here, end_permits, look_often, renew_often
from tests.primitives.resending import Resending
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.embedded import EmbeddedServer
    from celery_throttle.primitives import HeldPermit

LUA = files("celery_throttle.store") / "lua" / "semaphore"
PARTS = ("leases", "holders", "line", "looks", "waiters", "limit")


@pytest.fixture
def two(redis: Redis) -> FairSemaphore:
    """A semaphore with two permits."""
    return FairSemaphore(redis, "two", 2)


@pytest.fixture
def resending(server: EmbeddedServer, redis: Redis) -> Iterator[Resending]:
    """A client on the emptied server that sends every call twice."""
    FairSemaphore(redis, "loads", 1).limit()
    with Resending.from_url(server.url) as client:
        yield client


def take(semaphore: FairSemaphore, holder: str | None = None, **options: float) -> HeldPermit:
    """Take a permit that must be free."""
    held = semaphore.acquire(holder, blocking=False, **options)  # type: ignore[arg-type]
    assert held is not None
    return held


def refused(semaphore: FairSemaphore) -> bool:
    """Return whether no permit is available now."""
    return semaphore.acquire(blocking=False) is None


def names(semaphore: FairSemaphore) -> list[str]:
    """Return the holders of the permits."""
    return sorted(info.holder for info in semaphore.holders())


def keys(client: Redis, *, receipts: bool = False) -> set[str]:
    """Return the keys in Redis."""
    return {key.decode() for key in client.scan_iter() if receipts or b":released:" not in key}


# -- so many permits ---------------------------------------------------------------------------------------------------


def test_as_many_holders_as_permits(two: FairSemaphore) -> None:
    first, second = take(two), take(two)
    assert refused(two)
    assert second.ticket > first.ticket
    assert first.release()
    third = take(two)
    assert refused(two)
    assert third.ticket > second.ticket


def test_handle_has_the_data_of_its_permit(two: FairSemaphore) -> None:
    held = take(two, "web-1", lease=30)
    assert (held.name, held.holder, held.lost) == ("two", "web-1", False)
    assert 20 < held.lease_left <= 30
    assert repr(held).startswith("<HeldPermit 'two' ")
    held.release()
    assert (held.lost, held.lease_left) == (False, 0)


def test_two_permits_of_one_holder_are_two(two: FairSemaphore) -> None:
    """The name is for people; the nonce identifies the holder."""
    first, second = take(two, "me"), take(two, "me")
    assert refused(two)
    assert names(two) == ["me", "me"]
    assert first.release()
    assert second.renew()
    assert names(two) == ["me"]


def test_names_and_prefixes_do_not_meet(redis: Redis) -> None:
    semaphores = [
        FairSemaphore(redis, "a", 1),
        FairSemaphore(redis, "a:a", 1),
        FairSemaphore(redis, "a", 1, prefix="b"),
    ]
    for semaphore in semaphores:
        take(semaphore)
        assert refused(semaphore)


def test_the_end_of_a_lease_frees_it(two: FairSemaphore) -> None:
    """No reaper: the next caller does it; and the late holder cannot touch the next one."""
    late, _ = take(two, "late", lease=0.05), take(two, "other")
    held = two.acquire("next", timeout=20)
    assert held is not None
    with pytest.raises(LeaseLost, match="'two' is not held by late any more"):
        late.renew()
    assert late.release() is False
    assert late.lost
    assert names(two) == ["next", "other"]


def test_renewing_lengthens_the_lease_from_now_on(two: FairSemaphore) -> None:
    held = take(two, lease=50)
    assert held.renew()
    (info,) = two.holders()
    assert 40 < info.lease_left <= 50
    assert held.renew(100)
    (info,) = two.holders()
    assert 90 < info.lease_left <= 100
    assert 90 < held.lease_left <= 100
    assert held.renew(), "as long as the last time"
    assert two.holders()[0].lease_left > 90


def test_late_renewal_is_no_loss_while_the_permit_was_free(two: FairSemaphore, redis: Redis) -> None:
    held = take(two)
    end_permits(redis, "two")
    end_here(held)
    assert held.lease_left == 0
    assert two.holders() == ()
    assert held.renew(60)
    assert not held.lost
    assert len(two.holders()) == 1


def test_a_released_permit_cannot_be_renewed(two: FairSemaphore) -> None:
    held = take(two)
    held.release()
    with pytest.raises(LeaseLost, match="was released"):
        held.renew()
    assert not held.lost


def test_repeated_release_has_the_same_answer(two: FairSemaphore) -> None:
    """And gives nothing back a second time."""
    held, _ = take(two), take(two)
    assert held.release()
    take(two)
    assert held.release()
    assert refused(two)


def test_permit_of_another_holder_cannot_be_released(two: FairSemaphore, redis: Redis) -> None:
    """Not with its name, and not with that of one that was reclaimed."""
    take(two, "me")
    calls = two._calls
    impostor = FairSemaphore(redis, "two", 2)._calls.turn("me", None)
    assert redis.execute_command(*calls.release(impostor).eval()) == 0  # type: ignore[no-untyped-call]
    assert redis.execute_command(*calls.renew(impostor, 60).eval()) == 0  # type: ignore[no-untyped-call]
    assert names(two) == ["me"]


# -- how many permits --------------------------------------------------------------------------------------------------


def test_the_limit_of_the_object_counts_until_one_is_set(redis: Redis) -> None:
    """Then that one counts for all, until it is reset."""
    three, one = FairSemaphore(redis, "a", 3), FairSemaphore(redis, "a", 1)
    assert (three.limit(), one.limit()) == (3, 1)
    three.set_limit(2)
    assert (three.limit(), one.limit()) == (2, 2)
    assert FairSemaphore(redis, "a", 9).limit() == 2
    take(one)
    take(one)
    assert refused(three)
    three.set_limit(None)
    assert (three.limit(), one.limit()) == (3, 1)
    assert refused(one)
    take(three)
    assert "{throttle}:2:semaphore:limit:a" not in keys(redis)


def test_a_limit_that_is_set_stays(two: FairSemaphore, redis: Redis) -> None:
    two.set_limit(5)
    take(two).release()
    assert keys(redis) == {"{throttle}:2:semaphore:limit:two"}
    assert redis.ttl("{throttle}:2:semaphore:limit:two") == -1


def test_a_lower_limit_drains(two: FairSemaphore) -> None:
    """No holder loses a permit, and no caller gets one until enough have come back."""
    first, second = take(two), take(two)
    two.set_limit(1)
    assert first.renew()
    assert first.release()
    assert refused(two)
    second.release()
    take(two)
    assert refused(two)


def test_none_at_all(two: FairSemaphore) -> None:
    two.set_limit(0)
    assert refused(two)
    two.set_limit(None)
    take(two)


# -- looking -----------------------------------------------------------------------------------------------------------


def test_holders_are_shown(two: FairSemaphore) -> None:
    assert two.holders() == ()
    assert two.waiting() == 0
    held = take(two, "é 1", lease=30)
    (info,) = two.holders()
    assert isinstance(info, PermitInfo)
    assert (info.holder, info.ticket) == ("é 1", held.ticket)
    assert 20 < info.lease_left <= 30
    assert abs(info.since - datetime.now(timezone.utc)) < timedelta(seconds=5)
    held.renew(90)
    assert two.holders()[0].since == info.since


def test_the_lease_that_ends_first_comes_first(redis: Redis) -> None:
    wide = FairSemaphore(redis, "wide", 50)
    for number in range(50):
        take(wide, f"{number}", lease=600 - number)
    assert [info.holder for info in wide.holders()] == [str(number) for number in reversed(range(50))]


def test_a_holder_without_a_name_can_be_found(two: FairSemaphore) -> None:
    take(two)
    assert names(two) == [f"{socket.gethostname()}:{os.getpid()}"]


# -- keys --------------------------------------------------------------------------------------------------------------


def test_nothing_stays_when_the_work_is_done(two: FairSemaphore, redis: Redis) -> None:
    """Except, for a minute, the proof that a release was carried out."""
    with two.hold(), two.hold():
        assert two.acquire(timeout=0.05) is None
        assert keys(redis) == {f"{{throttle}}:2:semaphore:{part}:two" for part in ("leases", "holders")}
    assert keys(redis) == set()
    left = keys(redis, receipts=True)
    assert len(left) == 2
    assert all(0 < redis.pttl(key) <= 60_000 for key in left)


def test_every_key_ends_by_itself(two: FairSemaphore, redis: Redis) -> None:
    """Also if all programs die: the holders, and the waiting ones."""
    take(two, lease=600)
    take(two, lease=60)
    calls = two._calls
    redis.execute_command(*calls.acquire(calls.turn("waits", 60), 6, "nobody").eval())  # type: ignore[no-untyped-call]
    assert two.waiting() == 1
    left = {key.split(":")[3]: redis.pttl(key) / 1000 for key in keys(redis)}
    assert set(left) == {"leases", "holders", "line", "looks", "waiters"}
    assert all(600 < left[part] <= 1200 for part in ("leases", "holders")), "no sooner than the last lease"
    assert all(5 < left[part] <= 12 for part in ("line", "looks", "waiters"))


@pytest.mark.parametrize("verb", ["acquire", "look", "release", "renew", "set_limit"])
def test_script_header_lists_arguments_and_results(verb: str) -> None:
    text = (LUA / f"{verb}.lua").read_text("utf-8")
    assert text.startswith("-- ")
    assert all(f"-- {part}" in text for part in ("KEYS", "Returns "))
    assert "'TIME'" not in text, "once, in the shared part"


def test_shared_part_describes_the_keys() -> None:
    text = "".join((LUA / f"{name}.lua").read_text("utf-8") for name in ("permits", "line"))
    assert all(f"-- KEYS[{number}] {part} " in text for number, part in enumerate(PARTS, 1))
    assert text.count("'TIME'") == 1


def test_scripts_forgotten_in_between_do_not_matter(two: FairSemaphore, redis: Redis) -> None:
    held = take(two)
    redis.script_flush()
    assert held.renew()
    redis.script_flush()
    assert two.holders()
    redis.script_flush()
    assert held.release()


@pytest.mark.parametrize("options", [{"decode_responses": True}, {"protocol": 3}])
def test_any_kind_of_client_will_do(redis: Redis, server: EmbeddedServer, options: dict[str, int]) -> None:
    assert redis.dbsize() == 0
    with Redis.from_url(server.url, **options) as client, ThreadPoolExecutor(1) as pool:
        one = FairSemaphore(client, "one", 1)
        held = take(one, "é")
        (info,) = one.holders()
        assert (info.holder, info.ticket) == ("é", held.ticket)
        future = pool.submit(one.acquire, "next", 20)
        until(lambda: one.waiting() == 1)
        assert held.release()
        following = future.result(20)
        assert following is not None
        assert following.ticket > held.ticket


# -- a reply that was lost ---------------------------------------------------------------------------------------------


def test_an_acquire_sent_twice_is_one(resending: Resending, two: FairSemaphore) -> None:
    held = take(FairSemaphore(resending, "two", 2))
    (info,) = two.holders()
    assert info.ticket == held.ticket
    assert held.renew()


def test_a_place_in_line_asked_for_twice_is_one(resending: Resending, redis: Redis) -> None:
    one = FairSemaphore(resending, "one", 1)
    held = take(one)
    seen: list[int] = []
    resending.between = lambda: seen.append(redis.zcard("{throttle}:2:semaphore:line:one"))
    assert one.acquire(timeout=0.1) is None
    assert set(seen) <= {0, 1}
    assert 1 in seen
    assert one.waiting() == 0
    assert held.renew()


def test_a_release_sent_twice_is_one(resending: Resending, two: FairSemaphore) -> None:
    """Also if another caller took the permit before the second was carried out."""
    held, _ = take(FairSemaphore(resending, "two", 2)), take(two)
    resending.between = lambda: take(two, "next")
    assert held.release() is True
    assert not held.lost
    assert "next" in names(two)
    assert refused(two)


def test_acquire_sent_again_after_a_renewal_takes_nothing_away(two: FairSemaphore, redis: Redis) -> None:
    calls = two._calls
    turn = calls.turn("me", 10)
    for call in (calls.acquire(turn), calls.renew(turn, 100), calls.acquire(turn)):
        redis.execute_command(*call.eval())  # type: ignore[no-untyped-call]
    assert two.holders()[0].lease_left > 90


def test_retries_of_redis_py_itself(two: FairSemaphore, server: EmbeddedServer) -> None:
    """The connection breaks after the server has carried out the call."""
    with forgetful_client(server.url) as client:
        forgetful = FairSemaphore(client, "two", 2)
        forgetful.limit()
        lose_a_reply()
        held = take(forgetful)
        assert len(two.holders()) == 1
        lose_a_reply()
        assert held.renew() is True
        lose_a_reply()
        forgetful.set_limit(3)
        lose_a_reply()
        assert held.release() is True
    assert two.holders() == ()


# -- with --------------------------------------------------------------------------------------------------------------


def test_hold_releases_at_the_end_of_any_block(two: FairSemaphore) -> None:
    with two.hold("a") as held, two.hold("b"):
        assert refused(two)
        assert held.ticket
    with pytest.raises(KeyError), two.hold():
        raise KeyError
    assert two.holders() == ()


def test_hold_raises_when_its_turn_does_not_come(two: FairSemaphore) -> None:
    take(two)
    take(two)
    with pytest.raises(NotAcquired, match=r"No permit of 'two' was free for 0\.05 seconds"), two.hold(timeout=0.05):
        pytest.fail("not held")
    assert two.waiting() == 0


def lose(semaphore: FairSemaphore, client: Redis) -> None:
    """Let the store forget all permits."""
    client.delete(*(f"{{throttle}}:2:semaphore:{part}:{semaphore._calls.name}" for part in PARTS))


def test_hold_raises_when_the_permit_was_lost(two: FairSemaphore, redis: Redis) -> None:
    with pytest.raises(LeaseLost), two.hold():
        lose(two, redis)
    with pytest.raises(KeyError), two.hold():  # noqa: PT012 - what happens in the block is the test
        lose(two, redis)
        raise KeyError


def test_releasing_inside_the_block_is_fine(redis: Redis) -> None:
    one = FairSemaphore(redis, "one", 1)
    with one.hold() as held:
        held.release()
        successor = take(one)
    assert successor.renew()


def test_a_release_that_failed_can_be_repeated(own_server: EmbeddedServer) -> None:
    """Its result is unknown until it is sent again."""
    with impatient_client(own_server.url) as client:
        one = FairSemaphore(client, "one", 1)
        held = take(one)
        own_server.freeze()
        with pytest.raises(RedisError), impatience():
            held.release()
        own_server.thaw()
        assert held.release() is True
        assert one.holders() == ()


# -- renewal -----------------------------------------------------------------------------------------------------------


def test_a_thread_renews_while_it_is_held(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again and again; then it is free at once."""
    renew_often(monkeypatch)
    one = FairSemaphore(redis, "one", 1, lease=30)
    with one.hold(renew=True) as held:
        for _ in range(5):
            end_permits(redis, "one")
            until(one.holders)
        assert held.lease_left > 20
        assert not held.lost
    take(one)


def test_loss_is_reported_once(two: FairSemaphore, redis: Redis) -> None:
    told: list[HeldPermit] = []
    held = two.acquire(lease=0.6, renew=True, on_lost=told.append)
    assert held is not None
    lose(two, redis)
    until(lambda: told)
    assert held.lost
    assert held.release() is False
    assert told == [held]


# -- trouble -----------------------------------------------------------------------------------------------------------


def test_a_full_server_lets_renew_look_and_release(own_server: EmbeddedServer) -> None:
    """No new caller gets a permit or a place, but no holder loses one; released permits go to the next in line."""
    with Redis.from_url(own_server.url) as client, ThreadPoolExecutor(1) as pool:
        one = FairSemaphore(client, "one", 1)
        held = take(one)
        future = pool.submit(one.acquire, "next", 30)
        until(lambda: one.waiting() == 1)
        until(lambda: channels(client))
        turn = one._calls.turn("waits, too", 60)
        look = one._calls.acquire(turn, 60, "nobody").eval()
        client.execute_command(*look)
        client.config_set("maxmemory", 1)
        with pytest.raises(OutOfMemoryError):
            one.acquire(timeout=5)
        assert client.execute_command(*look)[0] == 0
        assert held.renew()
        assert held.release()
        following = future.result(20)
        assert following is not None
        assert following.renew()
        one.set_limit(2)
        assert client.execute_command(*look)[0] == 1
        assert client.execute_command(*look)[0] == 1, "held"
        assert following.release()


def test_user_without_publish_rights_can_still_release(
    redis: Redis, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may not ask for the subscribers either."""
    look_often(monkeypatch)
    redis.acl_setuser("mute", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-pubsub"], reset_channels=True)
    one = FairSemaphore(redis, "one", 1)
    with Redis.from_url(server.url, username="mute", password="x") as client, ThreadPoolExecutor(1) as pool:
        held = take(FairSemaphore(client, "one", 1))
        future = pool.submit(one.acquire, "next", 30)
        until(lambda: one.waiting() == 1)
        assert held.release()
        assert names(one) == ["next"]
        assert future.result(20)
    redis.acl_deluser("mute")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lease": 0}, "lease must be seconds"),
        ({"lease": True}, "lease must be seconds"),
        ({"lease": "60"}, "lease must be seconds"),
        ({"holder": ""}, "holder must be"),
        ({"holder": b"me"}, "holder must be"),
        ({"holder": "a\nb"}, "holder must be"),
        ({"holder": "a" * 201}, "holder must be"),
        ({"blocking": False, "timeout": 1}, "blocking=True"),
        ({"timeout": -1}, "timeout must be"),
        ({"timeout": "1"}, "timeout must be"),
    ],
)
def test_wrong_arguments_are_refused(two: FairSemaphore, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        two.acquire(**options)
    assert two.holders() == ()


@pytest.mark.parametrize("limit", [-1, True, 1.0, "2", 1_000_001])
def test_wrong_limits_are_refused(two: FairSemaphore, redis: Redis, limit: Any) -> None:
    with pytest.raises(ConfigurationError, match="limit must be"):
        two.set_limit(limit)
    with pytest.raises(ConfigurationError, match="limit must be"):
        FairSemaphore(redis, "a", limit)
    assert two.limit() == 2


@pytest.mark.parametrize(
    "options", [{"prefix": "a{b}"}, {"name": ""}, {"name": 1}, {"name": "a\nb"}, {"limit": 0}, {"lease": 0}]
)
def test_wrong_settings_are_refused(redis: Redis, options: dict[str, Any]) -> None:
    good: dict[str, Any] = {"name": "a", "limit": 1}
    with pytest.raises(ConfigurationError):
        FairSemaphore(redis, **good | options)


def test_the_example_of_its_docstring_runs(redis: Redis, server: EmbeddedServer, capsys: Any) -> None:
    lines = (inspect.getdoc(FairSemaphore) or "").split("::\n", 1)[1].split("\nA call that finds")[0]
    example = textwrap.dedent(lines).replace("Redis()", f"Redis.from_url({server.url!r})")
    assert "set_limit(None)" in example
    names: dict[str, Any] = {}
    exec(example, names)
    assert "PermitInfo(holder='web-1'" in capsys.readouterr().out
    assert keys(redis) == set()
    names["encoders"]._client.close()
