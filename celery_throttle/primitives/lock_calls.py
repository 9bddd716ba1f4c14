"""The calls of the identity locks, for sync and asyncio alike: arguments checked, replies as values with names."""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import socket
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from celery_throttle.errors import ConfigurationError
from celery_throttle.primitives.naming import named_key
from celery_throttle.store.scripts import Call, Script

__all__ = [
    "RECEIPT_MS",
    "Answer",
    "Attempt",
    "Grant",
    "LockCalls",
    "LockInfo",
    "answer",
    "checked_name",
    "info",
    "milliseconds",
    "patience",
    "program_name",
    "shown",
    "store_time",
]

#: How long a release that is sent again gets the same answer: redis-py's own retries take up to a minute.
RECEIPT_MS = 60_000
_MIN_LEASE, _MAX_LEASE = 0.01, 10 * 365 * 86400.0
_MAX_OWNER = 200


@dataclass(frozen=True)
class LockInfo:
    """Who has a lock.

    Attributes:
        owner: as given to ``acquire``, or ``host:pid:nonce``.
        fencing_token: of this grant.
        lease_left: seconds until it is free, unless it is renewed.
        since: when it was granted, by the store's clock.
    """

    owner: str
    fencing_token: int
    lease_left: float
    since: datetime


@dataclass(frozen=True)
class Answer:
    """What became of an attempt to take a lock.

    Attributes:
        granted: whether its owner has the lock now.
        again: it had the lock before the call already.
        holder: who has it.
    """

    granted: bool
    again: bool
    holder: LockInfo


@dataclass(frozen=True)
class Attempt:
    """An attempt to take a lock; sent twice it is still one."""

    identity: str | bytes
    key: str
    owner: str
    lease: float
    call: Call


@dataclass(frozen=True)
class Grant:
    """One grant of a lock, as the one who has it knows it. Without a token: whichever its owner has."""

    key: str
    owner: str
    fencing_token: int | None


class LockCalls:
    """Builds the calls for the locks of one prefix.

    Args:
        prefix: what all keys begin with.
        lease: seconds, for an attempt that does not say otherwise.

    Raises:
        ConfigurationError: an argument cannot work; as all methods here.
    """

    def __init__(self, prefix: str, lease: float) -> None:
        milliseconds("lease", lease)
        self.prefix, self.lease = prefix, lease
        self._fence = named_key(prefix, "lock", "fence")

    def key(self, identity: str | bytes) -> str:
        """Return the key of an identity: of the same length whatever it is; text counts as its UTF-8 bytes."""
        if not isinstance(identity, str | bytes):
            raise ConfigurationError(f"identity must be str or bytes, got {type(identity).__name__}: {shown(identity)}")
        # A lone surrogate is no UTF-8, but no reason to fail: any text has a lock of its own.
        raw = identity.encode("utf-8", "surrogatepass") if isinstance(identity, str) else identity
        return named_key(self.prefix, "lock", hashlib.sha256(raw).hexdigest())

    def acquire(self, identity: str | bytes, lease: float | None, owner: str | None) -> Attempt:
        """Take the lock."""
        lease = self.lease if lease is None else lease
        owner = f"{program_name()}:{secrets.token_hex(8)}" if owner is None else checked_name("owner", owner)
        key = self.key(identity)
        call = _call("lock_acquire", (key, self._fence), owner, milliseconds("lease", lease))
        return Attempt(identity, key, owner, lease, call)

    def renew(self, grant: Grant, lease: float) -> Call:
        """Let its lease end that many seconds from now."""
        return _call("lock_renew", (grant.key,), _token(grant), grant.owner, milliseconds("lease", lease))

    def release(self, grant: Grant) -> Call:
        """Give it back."""
        which = _token(grant) or hashlib.sha256(grant.owner.encode()).hexdigest()[:32]
        receipt = named_key(self.prefix, "lock", f"released:{which}")
        return _call("lock_release", (grant.key, receipt), _token(grant), grant.owner, RECEIPT_MS)

    def forget(self, identity: str | bytes, fencing_token: int) -> Call:
        """Take it away from whoever has this grant."""
        if isinstance(fencing_token, bool) or not isinstance(fencing_token, int):
            raise ConfigurationError(f"fencing_token must be the number that locked_by() shows, got {fencing_token!r}")
        # Not the receipt of release: the owner must hear that its lock was taken away.
        receipt = named_key(self.prefix, "lock", f"forgotten:{fencing_token}")
        return _call("lock_release", (self.key(identity), receipt), str(fencing_token), "", RECEIPT_MS)

    def look(self, identity: str | bytes) -> Call:
        """Ask who has it."""
        return _call("lock_look", (self.key(identity),))


def answer(raw: Any) -> Answer:
    """Read the reply of lock_acquire.lua."""
    code, *holder = raw
    return Answer(code > 0, code == 2, _info(*holder))  # noqa: PLR2004 - as the script says


def info(raw: Any) -> LockInfo | None:
    """Read the reply of lock_look.lua."""
    return _info(*raw) if raw else None


def milliseconds(what: str, seconds: object) -> int:
    """Return seconds as whole milliseconds.

    Raises:
        ConfigurationError: not a number of seconds from a hundredth to ten years.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not _MIN_LEASE <= seconds <= _MAX_LEASE:
        raise ConfigurationError(f"{what} must be seconds, from {_MIN_LEASE} to {_MAX_LEASE:.0f}, got {seconds!r}")
    return round(seconds * 1000)


def patience(blocking: bool, timeout: object) -> float:
    """Return how many seconds to wait for a lock: 0 is one attempt, infinity is for ever.

    Raises:
        ConfigurationError: a timeout for a call that does not wait, or one that is not a number of seconds.
    """
    if timeout is None:
        return math.inf if blocking else 0.0
    if not blocking:
        raise ConfigurationError("timeout is for blocking=True: without it the call does not wait")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise ConfigurationError(f"timeout must be seconds, 0 or more, or None to wait for ever, got {timeout!r}")
    return float(timeout)


def shown(identity: object) -> str:
    """Return an identity as a message may show it: it can be a megabyte."""
    clipped = identity[:80] if isinstance(identity, str | bytes) else identity
    return repr(clipped) + ("..." if clipped != identity else "")


def program_name() -> str:
    """Return the name of this program: whoever finds something taken wants to know by whom."""
    return f"{socket.gethostname()}:{os.getpid()}"


def checked_name(what: str, name: object) -> str:
    """Return the name of whoever holds something, if it can be one.

    Raises:
        ConfigurationError: it cannot.
    """
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_OWNER or not name.isprintable():
        raise ConfigurationError(f"{what} must be 1 to {_MAX_OWNER} printable characters, got {shown(name)}")
    return name


def store_time(microseconds: int) -> datetime:
    """Return a time of the store's clock."""
    return datetime.fromtimestamp(microseconds / 1e6, timezone.utc)


def _call(script: str, keys: tuple[str, ...], *arguments: str | int) -> Call:
    return Call(Script.load(script), (len(keys), *keys, *arguments))


def _info(token: int, since_us: int, left_ms: int, owner: str | bytes) -> LockInfo:
    # A client made with decode_responses=True gives text.
    owner = owner.decode() if isinstance(owner, bytes) else owner
    return LockInfo(owner, token, max(left_ms, 0) / 1000, store_time(since_us))


def _token(grant: Grant) -> str:
    return "" if grant.fencing_token is None else str(grant.fencing_token)
