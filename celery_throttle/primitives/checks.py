"""Check the arguments of the primitives, and build their keys."""

from __future__ import annotations

import inspect
import math
import os
import re
import socket
from datetime import timedelta
from typing import TypeVar

from celery_throttle.core.asking import plain
from celery_throttle.core.keys import LAYOUT
from celery_throttle.core.store_url import shown as without_password
from celery_throttle.errors import ConfigurationError

__all__ = [
    "checked_client",
    "checked_name",
    "milliseconds",
    "named_key",
    "patience",
    "printable",
    "program_name",
    "shown",
    "space",
    "whole_number",
]

C = TypeVar("C")

_PRINTABLE = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
_PREFIX = re.compile(r"[^\x00-\x20\x7f{}*?\[\]\\]{1,200}")
_MIN_LEASE, _MAX_LEASE = 0.01, 10 * 365 * 86400.0
_MAX_OWNER = 200


def checked_client(client: C, *, awaits: bool = False) -> C:
    """Return a client if it is a redis-py client of the right kind.

    Args:
        client: the argument as given.
        awaits: whether it has to be a client for asyncio.

    Raises:
        ConfigurationError: it is no client, or one of the other kind.
    """
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
    """Return the beginning of the keys of a prefix; the hash tag keeps them on one shard.

    Raises:
        ConfigurationError: the prefix cannot be a hash tag, or would need quoting in ``SCAN MATCH``.
    """
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise ConfigurationError(
            f"prefix must be text without braces, wildcards and blanks, got {prefix!r}: write 'shop'"
        )
    return f"{{{prefix}}}:{LAYOUT}"


def named_key(prefix: object, kind: str, name: object) -> str:
    """Return the key of a name of one kind of primitive.

    Raises:
        ConfigurationError: the prefix or the name cannot be part of a key.
    """
    return f"{space(prefix)}:{kind}:{printable(f'The name of a {kind}', name)}"


def printable(what: str, text: object) -> str:
    """Return a text if it can be part of a key.

    Raises:
        ConfigurationError: the text is no such text.
    """
    if not isinstance(text, str) or not _PRINTABLE.fullmatch(text):
        raise ConfigurationError(f"{what} must be 1 to 200 printable characters, got {text!r:.80}")
    return text


def whole_number(what: str, value: object, least: int, most: int) -> int:
    """Return a value if it is a whole number from ``least`` to ``most``.

    Raises:
        ConfigurationError: it is another value.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigurationError(
            f"{what} must be a whole number from {least} to {most}, got {value!r}: write {what}={max(least, 2)}"
        )
    return value


def milliseconds(what: str, seconds: object) -> int:
    """Return seconds as whole milliseconds.

    Raises:
        ConfigurationError: not a number of seconds from a hundredth to ten years.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not _MIN_LEASE <= seconds <= _MAX_LEASE:
        raise ConfigurationError(
            f"{what} must be seconds, from {_MIN_LEASE} to {_MAX_LEASE:.0f}, got {seconds!r}: write {what}="
            f"{plain(seconds.total_seconds() if isinstance(seconds, timedelta) else 60)}"
        )
    return round(seconds * 1000)


def patience(blocking: bool, timeout: object) -> float:
    """Return the seconds to wait for a lock: 0 is one attempt, infinity is for ever.

    Raises:
        ConfigurationError: a timeout for a call that does not wait, or one that is not a number of seconds.
    """
    if timeout is None:
        return math.inf if blocking else 0.0
    if not blocking:
        raise ConfigurationError(f"timeout={timeout!r} is for blocking=True: without it the call does not wait")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise ConfigurationError(f"timeout must be seconds, 0 or more, or None to wait for ever, got {timeout!r}")
    return float(timeout)


def shown(identity: object) -> str:
    """Return the beginning of an identity for a message, because an identity can be a megabyte long."""
    clipped = identity[:80] if isinstance(identity, str | bytes) else identity
    return repr(clipped) + ("..." if clipped != identity else "")


def program_name() -> str:
    """Return the name of this program, which other programs read as the holder of a lock or permit."""
    return f"{socket.gethostname()}:{os.getpid()}"


def checked_name(what: str, name: object) -> str:
    """Return the name of a holder, if it is valid.

    Raises:
        ConfigurationError: the name is no text, empty, too long or not printable.
    """
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_OWNER or not name.isprintable():
        raise ConfigurationError(f"{what} must be 1 to {_MAX_OWNER} printable characters, got {shown(name)}")
    return name
