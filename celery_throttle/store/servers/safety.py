"""Whether a server can say that what it was told is safe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from celery_throttle.store.servers.doctor import info_of, setting_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis

    from celery_throttle.core.durability import Durability

__all__ = ["safety_findings"]

#: Seconds; a server that can do it answers a client that has written nothing at once.
_PATIENCE = 0.1
#: Valkey answers WAITAOF before the data is on disk, but for ``appendfsync always``; so did Redis 7.4.0 to 7.4.2
#: (https://github.com/redis/redis/pull/13793). Versions of Valkey that are known to do so.
_HASTY = (8, 0), (9, 1)


def safety_findings(client: Redis, durability: Durability) -> Iterator[str]:
    """Yield a sentence, with the fix, for what keeps parked tasks from being as safe as they are to be.

    A server that cannot be reached yields nothing here: whoever uses it next says so.
    """
    command, *arguments = durability.within(_PATIENCE)
    wanted = f"throttle_park_durability is {durability.kind!r}"
    until = "; until then the broker keeps the messages of parked tasks"
    try:
        reply: Any = client.execute_command(str(command), *arguments)  # type: ignore[no-untyped-call]
    except NoPermissionError:
        yield f"{wanted}, and the store's user may not use {command}: ACL SETUSER ... +{str(command).lower()}{until}"
    except ResponseError as error:
        yield f"{wanted}, and {_why_not(str(error), client)}{until}"
    except RedisError:
        return
    else:
        if not durability.reached(reply) and durability.kind == "replicas":
            yield (
                f"{wanted}, and the store has {reply} of throttle_park_replicas = {durability.replicas}: attach "
                f"replicas (replicaof), or set throttle_park_replicas lower{until}"
            )
        elif durability.kind == "disk":
            yield from _hasty(client, wanted)


def _why_not(error: str, client: Redis) -> str:
    if "unknown command" in error.lower():
        version = info_of(client).get("redis_version")
        return (
            f"{'Redis ' + str(version) if version else 'the store'} cannot tell when data is on disk (WAITAOF): "
            f"upgrade to Redis 7.2 or Valkey, or set throttle_park_durability = 'replicas' or 'memory'"
        )
    if "appendonly" in error:
        return "the store writes no append-only file: set appendonly yes in it"
    return f"the store refuses to wait for it ({error})"


def _hasty(client: Redis, wanted: str) -> Iterator[str]:
    version = str(info_of(client).get("valkey_version", ""))
    first, last = _HASTY
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if first <= numbers <= last and (policy := setting_of(client, "appendfsync")) not in (None, "always"):
        yield (
            f"{wanted}, and Valkey {version} with appendfsync {policy} says so up to a second before it is (a machine "
            f"that loses power then loses it; a server that is killed does not): set appendfsync always in it"
        )
