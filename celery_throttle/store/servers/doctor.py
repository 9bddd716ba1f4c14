"""Check that the store is one that limits can rely on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from redis.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    NoPermissionError,
    RedisError,
    ResponseError,
)

from celery_throttle.store.servers.encryption import mixed_up, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis

__all__ = [
    "disk_error",
    "eviction_of",
    "findings",
    "info_of",
    "may_hint",
    "persistence_of",
    "refusal",
    "server_of",
    "setting_of",
]

_OLDEST = (6, 2)
_OTHER_URL = "correct throttle_url (or the broker's URL that it was taken from)"


def refusal(connection: Any) -> str | None:
    """Return why this server will never do as things are, with the fix; None if it does, or does not answer at all."""
    if missing := unreadable(connection):
        return missing
    try:
        connection.connect()
        connection.send_command("TIME")  # without a password, the first command is what is refused
        connection.read_response()
        connection.send_command("INFO", "server")
        return _too_old(connection.read_response())
    except NoPermissionError:
        return None  # it did let us in
    except (AuthenticationError, AuthenticationWrongNumberOfArgsError) as error:
        return f"refuses the user or the password ({error}): {_OTHER_URL}"
    except ResponseError as error:
        return f"has no such database ({error}): {_OTHER_URL}" if "DB index" in str(error) else None
    except (RedisError, OSError):
        return mixed_up(connection)
    finally:
        connection.disconnect()


def _too_old(info: Any) -> str | None:
    text = info.decode(errors="replace") if isinstance(info, bytes) else str(info)
    told = re.search(r"^redis_version:(\S+)", text, re.MULTILINE)
    if told is None or _numbers(told[1]) >= _OLDEST:
        return None
    return f"is Redis {told[1]}, which lacks commands that limits are made of: upgrade it to 6.2 or later"


def findings(client: Redis, url: str = "redis://", info: dict[str, Any] | None = None) -> Iterator[str]:
    """Yield a sentence, with the fix, for everything about the server that could break a limit.

    A server that cannot be reached yields nothing here: whoever uses it next says so.

    ``url`` is the store as it was named, ``info`` that of `info_of`; None to ask for it.
    """
    info = info_of(client) if info is None else info
    if not info:  # it says nothing about the server's fitness
        return
    mode = info.get("redis_mode") or info.get("server_mode")
    if mode == "sentinel":
        yield "throttle_url names a sentinel, not the store: write sentinel://host:26379/0?master_name=mymaster"
        return
    clustered = "+cluster://" in url
    if mode == "cluster" and not clustered:
        yield "the store is one node of a cluster and may not have our keys: write redis+cluster:// in throttle_url"
    elif mode == "standalone" and clustered:
        yield "cluster mode is disabled in the store: write redis:// in throttle_url instead of redis+cluster://"
    if info.get("role") not in (None, "master"):
        yield "the store is a replica, which cannot be written to: point throttle_url at the primary"
    version = str(info.get("redis_version", ""))
    if _numbers(version) < _OLDEST:
        yield f"the store is Redis {version}: upgrade it to 6.2 or later"
    policy = eviction_of(client, info)
    if policy and policy.startswith("volatile-"):
        yield (
            f"the store may evict keys that have a TTL (maxmemory-policy {policy}): the history of limits, the numbers "
            f"of workers' calls and the notes of what has run, but no permits and no parked tasks: "
            f"set maxmemory-policy noeviction"
        )
    elif policy not in (None, "noeviction"):
        yield (
            f"the store may evict keys (maxmemory-policy {policy}), and with them permits and parked tasks: "
            f"set maxmemory-policy noeviction"
        )
    if not info.get("aof_enabled") and setting_of(client, "save") == "":
        yield "the store is not durable, a restart loses parked tasks: set appendonly yes"


def may_hint(connection: Any, channel: str) -> bool | None:
    """Whether the store's user may send hints and hear them, None if the server says something else.

    Args:
        connection: to the store, not connected yet.
        channel: of the hints; an empty one is sent, which nobody takes for anything.

    Raises:
        redis.exceptions.RedisError, OSError: the server does not answer.
    """
    try:
        connection.connect()
        for command in (("PUBLISH", channel, ""), ("SUBSCRIBE", channel)):
            connection.send_command(*command)
            connection.read_response()
    except NoPermissionError:
        return False
    except ResponseError:
        return None
    finally:
        connection.disconnect()
    return True


def disk_error(client: Redis) -> str | None:
    """Return the error of a server that refuses all writes because it cannot write to its disk, else None.

    Such a server refuses a PING, too.
    """
    try:
        client.ping()
    except ResponseError as error:
        return str(error) if str(error).startswith("MISCONF ") else None
    return None


def server_of(info: dict[str, Any]) -> str | None:
    """Return what the server is, ``"Redis 7.0.15"`` or ``"Valkey 9.1.2"``, None if it does not say."""
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info['redis_version']}" if "redis_version" in info else None


def eviction_of(client: Redis, info: dict[str, Any]) -> str | None:
    """Return which keys the server evicts (its ``maxmemory-policy``), None: it does not say."""
    return info.get("maxmemory_policy") or setting_of(client, "maxmemory-policy")


def persistence_of(info: dict[str, Any], save: str | None) -> str | None:
    """Return how the server keeps its data: ``"append-only file"``, ``"snapshots"``, ``"none"``, None: it does not say.

    Args:
        info: see `info_of`.
        save: the setting of this name, see `setting_of`.
    """
    if info.get("aof_enabled"):
        return "append-only file"
    if save is None:
        return None
    return "snapshots" if save else "none"


def info_of(client: Redis) -> dict[str, Any]:
    """Return what the server tells of itself, nothing where that is forbidden or the server is out of reach."""
    try:
        info: dict[str, Any] = client.info()
    except RedisError:
        return {}
    return info


def setting_of(client: Redis, name: str) -> str | None:
    """Return a setting of the server, None where that is forbidden or the server is out of reach."""
    try:
        values: Any = client.config_get(name)
    except RedisError:
        return None  # A managed Redis forbids CONFIG.
    value = next(iter(values.values()), None)
    return value.decode() if isinstance(value, bytes) else value


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
