"""Check the arguments of the primitives, and build their keys; what cannot work is a `ConfigurationError`."""

from __future__ import annotations

import inspect
import math
import os
import socket
from typing import TypeVar

from celery_throttle.core.checks import key_part, seconds, text
from celery_throttle.core.keys import LAYOUT
from celery_throttle.core.store_url import shown as without_password
from celery_throttle.errors import ConfigurationError

__all__ = ["LEAST", "checked_client", "named_key", "patience", "program_name", "shown", "space"]

C = TypeVar("C")

#: The shortest lease, in seconds.
LEAST = 0.01


def checked_client(client: C, *, awaits: bool = False) -> C:
    """Return a client if it is a redis-py client of the right kind; ``awaits``: of the kind for asyncio."""
    execute: object = getattr(client, "execute_command", None)
    kind = "redis.asyncio.Redis" if awaits else "redis.Redis"
    if execute is None:
        given: object = without_password(client) if isinstance(client, str) else client
        write = f"{kind}.from_url({given!r})" if isinstance(client, str) else f"{kind}(host='localhost')"
        raise ConfigurationError(f"client must be a {kind}, got {given!r}: write {write}")
    other = type(client).__module__.startswith("redis.") and inspect.iscoroutinefunction(execute) != awaits
    if other:
        given, fix = f"a {type(client).__module__}.{type(client).__name__}", "without" if awaits else "with"
        raise ConfigurationError(f"client must be a {kind}, got {given}: or use the class {fix} Async in front")
    return client


def space(prefix: object) -> str:
    """Return the beginning of the keys of a prefix, see `key_part`; the hash tag keeps them on one shard."""
    return f"{{{key_part('prefix', prefix, 'shop')}}}:{LAYOUT}"


def named_key(prefix: object, kind: str, name: object) -> str:
    """Return the key of a name of one kind of primitive."""
    return f"{space(prefix)}:{kind}:{text(f'{kind} name', name)}"


def patience(blocking: bool, timeout: object) -> float:
    """Return the seconds to wait for a lock: 0 is one attempt, infinity is for ever; a timeout needs ``blocking``."""
    if timeout is None:
        return math.inf if blocking else 0.0
    if not blocking:
        raise ConfigurationError(f"timeout={timeout!r} is for blocking=True: without it the call does not wait")
    return seconds("timeout", timeout, most=math.inf)


def shown(identity: object) -> str:
    """Return the beginning of an identity for a message, because an identity can be a megabyte long."""
    clipped = identity[:80] if isinstance(identity, str | bytes) else identity
    return repr(clipped) + ("..." if clipped != identity else "")


def program_name() -> str:
    """Return the name of this program, which other programs read as the holder of a lock or permit."""
    return f"{socket.gethostname()}:{os.getpid()}"
