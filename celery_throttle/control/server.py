"""Examine a server: its settings, our rights on it, and its latency."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from celery_throttle.core.store_url import shown
from celery_throttle.errors import StoreUnavailable
from celery_throttle.store.servers.client import make_client
from celery_throttle.store.servers.doctor import (
    disk_error,
    eviction_of,
    findings,
    info_of,
    persistence_of,
    server_of,
    setting_of,
)
from celery_throttle.store.servers.layouts import layout_findings
from celery_throttle.store.servers.safety import safety_findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis

    from celery_throttle.core.durability import Durability
    from celery_throttle.core.keys import Keys

__all__ = ["FULL", "RIGHTS", "UNWRITABLE", "StoreFacts", "examine"]

#: Seconds. Each start waits for at least one call, and ends by a given time follow the store's clock.
_SLOW, _CLOCKS_APART = 0.05, 5.0
_LOOKS = 9

#: The beginning of the sentence about a full server.
FULL = "the store is full"

#: The beginning of the sentence about a server that refuses all writes.
UNWRITABLE = "the store takes no writes"

#: The commands that the scripts and the clients need, as in docs/howto/redis.md.
RIGHTS = (
    *("evalsha", "eval", "subscribe", "publish", "bitfield", "del", "exists", "get", "hdel", "hexists", "hget"),
    *("hgetall", "hincrby", "hkeys", "hmget", "hrandfield", "hscan", "hset", "hsetnx", "hstrlen", "pexpire"),
    *("ping", "setrange", "time", "zadd", "zcard", "zlexcount", "zrandmember", "zrange", "zrangebylex"),
    *("zrangebyscore", "zrem", "zremrangebyscore", "zscan", "zscore"),
)
#: Checks the rights on the server (Redis 7.0 and later); no command is carried out.
_ASK_FOR_RIGHTS = """
if not redis.acl_check_cmd then return false end
local key, channel, missing = KEYS[1], ARGV[1], {}
local given = {
  eval = { '', '1', key }, evalsha = { '', '1', key }, subscribe = { channel }, publish = { channel, '' }, time = {},
  ping = {}, bitfield = { key }, del = { key }, exists = { key }, get = { key },
}
for i = 2, #ARGV do
  if not redis.acl_check_cmd(ARGV[i], unpack(given[ARGV[i]] or { key, '0', '0' })) then
    missing[#missing + 1] = ARGV[i]
  end
end
return missing
"""


@dataclass(frozen=True)
class StoreFacts:
    """A server that has limits; a fact that the server does not report is None.

    Attributes:
        url: the URL of the server, without its passwords.
        group: the group of limits that the server was examined for; in a cluster each may be on another node.
        server: ``"Redis 7.0.15"``, ``"Valkey 9.1.2"``.
        role: ``"master"`` or ``"slave"``.
        eviction: its ``maxmemory-policy``.
        persistence: ``"append-only file"``, ``"snapshots"`` or ``"none"``.
        missing_rights: the commands that the library needs and may not use.
        latency: seconds from a command to its reply, the median of several.
        clock_difference: seconds by which its clock is ahead of this machine's.
        full: whether the server uses all of its ``maxmemory``, and so refuses commands that need memory.
        disk_error: the error with which the server refuses all writes, because it cannot write to its disk.
    """

    url: str
    group: str
    server: str | None
    role: str | None
    eviction: str | None
    persistence: str | None
    missing_rights: tuple[str, ...] | None
    latency: float
    clock_difference: float
    full: bool = False
    disk_error: str | None = None

    @property
    def unknown(self) -> tuple[str, ...]:
        """The names of the facts that the server does not report."""
        names = ("server", "role", "eviction", "persistence", "missing_rights")
        return tuple(name for name in names if getattr(self, name) is None)


def examine(url: str, keys: Keys, durability: Durability | None = None) -> tuple[StoreFacts, list[str]]:
    """Return the facts of the server that has these keys, and a sentence with the fix for each problem.

    `ConfigurationError` if the URL cannot work, `StoreUnavailable` if the store does not answer, or denies access.
    """
    with make_client(url, keys) as client:
        try:
            facts = _facts(client, url, keys)
            unsafe = [] if durability is None else safety_findings(client, durability)
            return facts, [
                *findings(client, url),
                *layout_findings(client, keys),
                *unsafe,
                *_more_findings(facts, keys),
            ]
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"the store did not answer, or refused: {error}") from error


def _facts(client: Redis, url: str, keys: Keys) -> StoreFacts:
    latency, ahead = _times(client)
    info = info_of(client)
    return StoreFacts(
        shown(url),
        keys.group,
        server=server_of(info),
        role=info.get("role"),
        eviction=eviction_of(client, info),
        persistence=persistence_of(info, setting_of(client, "save")),
        missing_rights=_missing_rights(client, keys),
        latency=latency,
        clock_difference=ahead,
        full=_is_full(info),
        disk_error=disk_error(client),
    )


def _is_full(info: dict[str, Any]) -> bool:
    """Return whether the server refuses commands that need memory, by the server's own rule."""
    most, counted = info.get("maxmemory") or 0, info.get("used_memory", 0)
    return bool(most) and counted - info.get("mem_not_counted_for_evict", 0) >= most


def _times(client: Redis) -> tuple[float, float]:
    """Return (latency, clock difference) in seconds."""
    taken, ahead = [], []
    for _ in range(_LOOKS):
        began, clock = time.perf_counter(), time.time()
        try:
            seconds, microseconds = client.time()
        except ResponseError:  # a sentinel has no TIME command; the findings report the sentinel
            return 0.0, 0.0
        taken.append(time.perf_counter() - began)
        ahead.append(seconds + microseconds / 1e6 - clock - taken[-1] / 2)
    return median(taken), median(ahead)


def _missing_rights(client: Redis, keys: Keys) -> tuple[str, ...] | None:
    try:
        missing: Any = client.eval(_ASK_FOR_RIGHTS, 1, keys.key("meta"), keys.wake, *RIGHTS)
    except NoPermissionError:  # no right to EVAL, or none on these keys
        return ("eval",)
    except ResponseError:
        return None
    return tuple(each.decode() for each in missing) if isinstance(missing, list) else None


def _more_findings(facts: StoreFacts, keys: Keys) -> Iterator[str]:
    if facts.full:
        yield (
            f"{FULL}: it uses all of its maxmemory, so it refuses to park tasks and, where it is the broker or the "
            f"result backend, to publish them and to keep results: raise maxmemory, or remove what fills it"
        )
    if facts.disk_error:
        yield _unwritable(facts.disk_error)
    if facts.missing_rights:
        missing = " ".join(f"+{each}" for each in facts.missing_rights)
        yield (
            f"the store does not allow its user all that is needed: ACL SETUSER ... ~{keys.pattern} &{keys.wake} "
            f"{missing}"
        )
    if facts.latency > _SLOW:
        yield (
            f"an answer of the store takes {facts.latency * 1000:.0f} ms, and each start of a throttled task waits for "
            f"one: put it nearer to the workers, or find out what keeps it busy"
        )
    if abs(facts.clock_difference) > _CLOCKS_APART:
        yield (
            f"the store's clock is {facts.clock_difference:+.1f} s from this machine's: set both by NTP, since "
            f"a change that ends at a given time ends by the store's clock"
        )


def _unwritable(error: str) -> str:
    """Return a sentence about a server that refuses all writes, from its error."""
    _, found, why = error.partition("AOF file: ")
    what = "its append-only file (aof_last_write_status:err)" if found else "a snapshot (rdb_last_bgsave_status:err)"
    reason = f"cannot write {what}: {why.strip()}" if found else f"could not write {what}"
    return (
        f"{UNWRITABLE}, because it {reason}. Workers live, but no throttled task starts, and no lease is renewed: make "
        f"room on the store's disk, or let the server write there"
    )
