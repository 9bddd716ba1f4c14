"""The identity lock: its holder, its end, and the powers of a late holder."""

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
from celery_throttle.primitives import IdentityLock
from tests.primitives.faults import forgetful_client, impatience, impatient_client, lose_a_reply
from tests.primitives.pace import end_here
from tests.primitives.resending import Resending
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.embedded import EmbeddedServer
    from celery_throttle.primitives import HeldLock

LUA = files("celery_throttle.store") / "lua" / "lock"
HOSTILE: list[str | bytes] = [
    "",
    "*",
    ":",
    "{x}",
    "a b\n\0c",
    "é",
    "\ud800",
    "x" * 1_000_000,
    b"\xff\0",
    "throttle:1:lock:fence",
    "fence",
]


@pytest.fixture
def locks(redis: Redis) -> IdentityLock:
    return IdentityLock(redis)


@pytest.fixture
def resending(server: EmbeddedServer, redis: Redis) -> Iterator[Resending]:
    """A client on the emptied server that sends every call twice."""
    IdentityLock(redis).locked_by("loads")
    with Resending.from_url(server.url) as client:
        yield client


def take(locks: IdentityLock, identity: str | bytes = "a", **options: float) -> HeldLock:
    """Take a lock that must be free."""
    held = locks.acquire(identity, **options)  # type: ignore[arg-type]
    assert held is not None
    return held


def keys(client: Redis) -> list[bytes]:
    """Everything that is in Redis."""
    return [bytes(key) for key in client.scan_iter()]


def lock_key(client: Redis) -> bytes:
    """The key of the only lock that is held."""
    (key,) = [key for key in keys(client) if len(key.rpartition(b":")[2]) == 64]
    return key


# -- one holder ------------------------------------------------------------------------------------------------------


def test_one_holder_at_a_time(locks: IdentityLock) -> None:
    held = take(locks)
    assert locks.acquire("a") is None
    assert take(locks, "b").fencing_token > held.fencing_token
    assert held.release()
    assert take(locks).fencing_token > held.fencing_token


def test_handle_has_the_data_of_its_grant(locks: IdentityLock) -> None:
    held = locks.acquire("order 17", 30, owner="web-1")
    assert held is not None
    assert (held.identity, held.owner, held.lost) == ("order 17", "web-1", False)
    assert 20 < held.lease_left <= 30
    assert repr(held).startswith("<HeldLock 'order 17' ")
    held.release()
    assert (held.lost, held.lease_left) == (False, 0)


def test_an_end_of_the_lease_frees_it(locks: IdentityLock) -> None:
    """No reaper: Redis does it; and the late holder cannot touch the next one."""
    late = take(locks, lease=0.05)
    held = locks.acquire("a", blocking=True, timeout=20)
    assert held is not None
    with pytest.raises(LeaseLost):
        late.renew()
    assert late.release() is False
    assert late.lost
    info = locks.locked_by("a")
    assert info is not None
    assert info.fencing_token == held.fencing_token > late.fencing_token
    assert info.lease_left > 30


def test_renewing_lengthens_the_lease_from_now_on(locks: IdentityLock, redis: Redis) -> None:
    held = take(locks, lease=50)
    assert held.renew()
    assert redis.pttl(lock_key(redis)) <= 50_000
    assert held.renew(100)
    assert 90_000 < redis.pttl(lock_key(redis)) <= 100_000
    assert 90 < held.lease_left <= 100
    assert held.renew(), "as long as the last time"
    assert redis.pttl(lock_key(redis)) > 90_000


def test_a_late_renewal_that_redis_still_accepts_is_no_loss(locks: IdentityLock) -> None:
    """Paused for longer than the lease by our clock, but the lock had no other holder."""
    held = take(locks)
    end_here(held)
    assert held.lost
    assert held.lease_left == 0
    assert held.renew(60)
    assert not held.lost


def test_a_released_lock_cannot_be_renewed(locks: IdentityLock) -> None:
    held = take(locks)
    held.release()
    with pytest.raises(LeaseLost, match="was released"):
        held.renew()
    assert not held.lost


def test_repeated_release_has_the_same_answer(locks: IdentityLock) -> None:
    held = take(locks)
    assert held.release()
    take(locks)
    assert held.release()
    assert locks.locked_by("a") is not None


def test_the_same_owner_has_the_same_grant(locks: IdentityLock, redis: Redis) -> None:
    """And for as long as it asked for, but never shorter."""
    first, second = locks.acquire("a", 10, owner="me"), locks.acquire("a", 100, owner="me")
    assert first is not None
    assert second is not None
    assert first.fencing_token == second.fencing_token
    assert redis.pttl(lock_key(redis)) > 90_000
    assert locks.acquire("a", 10, owner="me") is not None
    assert redis.pttl(lock_key(redis)) > 90_000
    assert locks.acquire("a", owner="m") is None


def test_a_name_used_again_is_another_grant(locks: IdentityLock) -> None:
    """The owner alone is no proof, but the fencing token is."""
    late = locks.acquire("a", 0.05, owner="me")
    assert late is not None
    until(lambda: locks.locked_by("a") is None)
    held = locks.acquire("a", owner="me")
    with pytest.raises(LeaseLost):
        late.renew()
    assert late.release() is False
    assert held is not None
    assert held.release()


# -- identities and keys -----------------------------------------------------------------------------------------------


def test_hostile_identities_do_not_meet(locks: IdentityLock, redis: Redis) -> None:
    """Each has its own lock, and no key grows with it."""
    tokens = {take(locks, identity).fencing_token for identity in HOSTILE}
    assert len(tokens) == len(HOSTILE)
    assert {len(key) for key in keys(redis)} <= {len("{throttle}:2:lock:") + 64, len("{throttle}:2:lock:fence")}
    assert all(locks.acquire(identity) is None for identity in HOSTILE)


def test_text_is_its_bytes(locks: IdentityLock) -> None:
    take(locks, "é")
    assert locks.acquire("é".encode()) is None


def test_a_megabyte_does_not_reach_the_messages(locks: IdentityLock) -> None:
    held = take(locks, "x" * 1_000_000)
    assert len(repr(held)) < 200
    locks.forget(held.identity, held.fencing_token)
    with pytest.raises(LeaseLost) as error:
        held.renew()
    assert len(str(error.value)) < 300


def test_prefixes_do_not_meet(redis: Redis) -> None:
    take(IdentityLock(redis))
    take(IdentityLock(redis, prefix="other"))


def test_all_keys_share_a_hash_tag_and_all_but_one_end(locks: IdentityLock, redis: Redis) -> None:
    take(locks).release()
    held = take(locks)
    locks.forget("a", held.fencing_token)
    take(locks)
    assert all(key.startswith(b"{throttle}:2:lock:") for key in keys(redis))
    lasting = [key for key in keys(redis) if redis.pttl(key) < 0]
    assert lasting == [b"{throttle}:2:lock:fence"]


@pytest.mark.parametrize("name", ["acquire", "look", "release", "renew"])
def test_script_header_lists_arguments_and_results(name: str) -> None:
    text = (LUA / f"{name}.lua").read_text("utf-8")
    assert text.startswith("-- ")
    assert all(f"-- {part}" in text for part in ("KEYS[1] lock", "Returns "))
    assert text.count("'TIME'") <= 1


def test_scripts_forgotten_in_between_do_not_matter(locks: IdentityLock, redis: Redis) -> None:
    held = take(locks)
    redis.script_flush()
    assert held.renew()
    redis.script_flush()
    assert held.release()


@pytest.mark.parametrize("options", [{"decode_responses": True}, {"protocol": 3}])
def test_any_kind_of_client_will_do(redis: Redis, server: EmbeddedServer, options: dict[str, int]) -> None:
    assert redis.dbsize() == 0
    with Redis.from_url(server.url, **options) as client:
        locks = IdentityLock(client)
        held = locks.acquire("a", owner="é")
        info = locks.locked_by("a")
        assert held is not None
        assert info is not None
        assert (info.owner, info.fencing_token) == ("é", held.fencing_token)
        assert locks.acquire("a", blocking=True, timeout=0.05) is None
        assert held.release()


# -- fencing tokens ----------------------------------------------------------------------------------------------------


def test_tokens_grow_though_the_data_is_lost(locks: IdentityLock, redis: Redis) -> None:
    before = take(locks).fencing_token
    redis.flushall()
    assert take(locks).fencing_token > before


def test_tokens_grow_though_the_clock_is_set_back(locks: IdentityLock, redis: Redis) -> None:
    """The last token is ahead of the time: exactly one more, though it needs all digits."""
    redis.set("{throttle}:2:lock:fence", 8_000_000_000_000_001)
    assert take(locks, "a").fencing_token == 8_000_000_000_000_002
    assert take(locks, "b").fencing_token == 8_000_000_000_000_003


def test_no_two_grants_have_the_same_token(locks: IdentityLock) -> None:
    with ThreadPoolExecutor(8) as pool:
        held = list(pool.map(lambda n: locks.acquire(f"id {n}"), range(400)))
    assert len({lock.fencing_token for lock in held if lock is not None}) == 400


# -- a reply that was lost ---------------------------------------------------------------------------------------------


def test_an_acquire_sent_twice_is_one(resending: Resending, locks: IdentityLock) -> None:
    held = take(IdentityLock(resending))
    info = locks.locked_by("a")
    assert info is not None
    assert info.fencing_token == held.fencing_token
    assert held.renew()


def test_a_release_sent_twice_is_one(resending: Resending, locks: IdentityLock) -> None:
    """Also if another caller took the lock, and gave it back, before the second was carried out."""
    held = take(IdentityLock(resending))
    resending.between = lambda: take(locks).release()
    assert held.release() is True
    assert not held.lost


def test_a_forget_sent_twice_is_one(resending: Resending, locks: IdentityLock) -> None:
    held = take(locks)
    assert IdentityLock(resending).forget("a", held.fencing_token) is True
    assert held.release() is False


def test_retries_of_redis_py_itself(locks: IdentityLock, server: EmbeddedServer) -> None:
    """The connection breaks after the server has carried out the call."""
    with forgetful_client(server.url) as client:
        forgetful = IdentityLock(client)
        forgetful.locked_by("loads")
        lose_a_reply()
        held = take(forgetful)
        lose_a_reply()
        assert held.renew() is True
        lose_a_reply()
        assert held.release() is True
    assert locks.locked_by("a") is None


# -- looking and forgetting --------------------------------------------------------------------------------------------


def test_holder_is_shown(locks: IdentityLock) -> None:
    assert locks.locked_by("a") is None
    before = datetime.now(timezone.utc)
    held = locks.acquire("a", 30, owner="web-1")
    info = locks.locked_by("a")
    assert held is not None
    assert info is not None
    assert (info.owner, info.fencing_token) == ("web-1", held.fencing_token)
    assert 20 < info.lease_left <= 30
    assert abs(info.since - before) < timedelta(seconds=5)


def test_renewing_does_not_change_since_when(locks: IdentityLock) -> None:
    held = take(locks)
    first = locks.locked_by("a")
    held.renew(90)
    second = locks.locked_by("a")
    assert first is not None
    assert second is not None
    assert first.since == second.since


def test_an_owner_without_a_name_can_be_found(locks: IdentityLock) -> None:
    """By host and pid."""
    take(locks)
    info = locks.locked_by("a")
    assert info is not None
    assert info.owner.startswith(f"{socket.gethostname()}:{os.getpid()}:")


def test_forgetting_takes_it_away_from_its_holder(locks: IdentityLock) -> None:
    held = take(locks)
    assert locks.forget("a", held.fencing_token)
    assert locks.locked_by("a") is None
    with pytest.raises(LeaseLost):
        held.renew()
    assert held.lost
    assert held.release() is False


def test_only_the_grant_that_was_looked_at_is_forgotten(locks: IdentityLock) -> None:
    """The operator thinks for a while; in between another caller gets the lock."""
    seen = take(locks)
    seen.release()
    held = take(locks)
    assert locks.forget("a", seen.fencing_token) is False
    assert locks.forget("b", held.fencing_token) is False
    assert held.renew()


# -- with --------------------------------------------------------------------------------------------------------------


def test_hold_releases_at_the_end_of_any_block(locks: IdentityLock) -> None:
    with locks.hold("a") as held:
        assert locks.acquire("a") is None
        assert held.fencing_token
    with pytest.raises(KeyError), locks.hold("a"):
        raise KeyError
    assert locks.locked_by("a") is None


def test_hold_raises_when_the_lock_is_taken(locks: IdentityLock) -> None:
    take(locks)
    with pytest.raises(NotAcquired, match="'a' was held by another owner"), locks.hold("a", timeout=0):
        pytest.fail("not held")


def test_hold_raises_when_the_lock_was_lost(locks: IdentityLock) -> None:
    with pytest.raises(LeaseLost), locks.hold("a") as held:
        locks.forget("a", held.fencing_token)


def test_the_error_of_the_block_goes_first(locks: IdentityLock) -> None:
    with pytest.raises(KeyError), locks.hold("a") as held:  # noqa: PT012 - what happens in the block is the test
        locks.forget("a", held.fencing_token)
        raise KeyError


def test_releasing_inside_the_block_is_fine(locks: IdentityLock) -> None:
    with locks.hold("a") as held:
        held.release()
        successor = take(locks)
    assert successor.renew()


def test_an_error_of_redis_does_not_hide_that_of_the_block(own_server: EmbeddedServer) -> None:
    with impatient_client(own_server.url) as client:
        locks = IdentityLock(client)
        with pytest.raises(KeyError), locks.hold("a"):  # noqa: PT012 - as above
            own_server.kill()
            raise KeyError
        own_server.restart()
        with pytest.raises(RedisError), locks.hold("a"):
            own_server.kill()


def test_a_release_that_failed_can_be_repeated(own_server: EmbeddedServer) -> None:
    """Its result is unknown until it is sent again."""
    with impatient_client(own_server.url) as client:
        locks = IdentityLock(client)
        held = take(locks)
        own_server.freeze()
        with pytest.raises(RedisError), impatience():
            held.release()
        own_server.thaw()
        assert held.release() is True
        assert locks.locked_by("a") is None


# -- trouble -----------------------------------------------------------------------------------------------------------


def test_lost_data_is_a_lost_lock(locks: IdentityLock, redis: Redis) -> None:
    held = take(locks)
    redis.flushall()
    with pytest.raises(LeaseLost):
        held.renew()
    assert held.lost


def test_a_full_server_lets_renew_and_release(own_server: EmbeddedServer) -> None:
    """No caller gets a lock, but no holder loses one, and they can be given back."""
    with Redis.from_url(own_server.url) as client:
        locks = IdentityLock(client)
        held, other = take(locks, "a"), take(locks, "b")
        client.config_set("maxmemory", 1)
        with pytest.raises(OutOfMemoryError):
            locks.acquire("c")
        assert held.renew()
        assert held.release()
        assert locks.forget("b", other.fencing_token)


def test_user_without_publish_rights_can_still_release(redis: Redis, server: EmbeddedServer) -> None:
    redis.acl_setuser("mute", enabled=True, nopass=True, keys=["*"], commands=["+@all"], reset_channels=True)
    with Redis.from_url(server.url, username="mute", password="x") as client:
        assert take(IdentityLock(client)).release()
    redis.acl_deluser("mute")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lease": 0}, "lease must be seconds"),
        ({"lease": True}, "lease must be seconds"),
        ({"lease": float("nan")}, "lease must be seconds"),
        ({"lease": float("inf")}, "lease must be seconds"),
        ({"lease": "60"}, "lease must be seconds"),
        ({"owner": ""}, "owner must be"),
        ({"owner": b"me"}, "owner must be"),
        ({"owner": "a\nb"}, "owner must be"),
        ({"owner": "a" * 201}, "owner must be"),
        ({"timeout": 1}, "blocking=True"),
        ({"blocking": True, "timeout": -1}, "timeout must be"),
        ({"blocking": True, "timeout": float("nan")}, "timeout must be"),
        ({"blocking": True, "timeout": "1"}, "timeout must be"),
    ],
)
def test_wrong_arguments_are_refused(locks: IdentityLock, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        locks.acquire("a", **options)
    assert locks.locked_by("a") is None


@pytest.mark.parametrize("identity", [None, 17, ["a"], ("a", 1)])
def test_wrong_identities_are_refused(locks: IdentityLock, identity: Any) -> None:
    for use in (locks.acquire, locks.locked_by, lambda wrong: locks.forget(wrong, 1)):
        with pytest.raises(ConfigurationError, match="identity must be str or bytes"):
            use(identity)


@pytest.mark.parametrize("token", [None, "1", True, 1.0])
def test_wrong_tokens_are_refused(locks: IdentityLock, token: Any) -> None:
    """An empty one, above all, must not mean any."""
    held = take(locks)
    with pytest.raises(ConfigurationError, match="fencing_token must be"):
        locks.forget("a", token)
    assert held.renew()


@pytest.mark.parametrize("options", [{"prefix": ""}, {"prefix": "a{b}"}, {"prefix": 1}, {"lease": 0}])
def test_wrong_settings_are_refused(redis: Redis, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        IdentityLock(redis, **options)


def test_the_example_of_its_docstring_runs(redis: Redis, server: EmbeddedServer) -> None:
    lines = (inspect.getdoc(IdentityLock) or "").split("::\n", 1)[1].split("\nKeys:")[0]
    example = textwrap.dedent(lines).replace("Redis()", f"Redis.from_url({server.url!r})")
    assert "fence < :fence" in example
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["orders"].execute("SELECT state, fence FROM orders").fetchone() == (
        "paid",
        names["held"].fencing_token,
    )
    assert redis.exists("{throttle}:2:lock:fence")
    names["locks"]._client.close()
    names["orders"].close()
