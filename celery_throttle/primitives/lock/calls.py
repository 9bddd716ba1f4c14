"""The calls of the identity locks, for sync and asyncio alike: arguments checked, replies as values with names."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_throttle.core.wording import at, seconds
from celery_throttle.errors import ConfigurationError
from celery_throttle.primitives.checks import checked_name, milliseconds, named_key, program_name, shown
from celery_throttle.primitives.lease.base import RECEIPT_MS, store_time
from celery_throttle.store.scripts import Call, Script

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["Answer", "Attempt", "Grant", "LockCalls", "LockInfo", "answer", "info"]


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

    def __str__(self) -> str:
        return (
            f"{self.owner} since {at(self.since)}, lease ends in {seconds(self.lease_left)}, "
            f"fencing token {self.fencing_token}"
        )


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
        call = _call("acquire", (key, self._fence), owner, milliseconds("lease", lease))
        return Attempt(identity, key, owner, lease, call)

    def renew(self, grant: Grant, lease: float) -> Call:
        """Let its lease end that many seconds from now."""
        return _call("renew", (grant.key,), _token(grant), grant.owner, milliseconds("lease", lease))

    def release(self, grant: Grant) -> Call:
        """Give it back."""
        which = _token(grant) or hashlib.sha256(grant.owner.encode()).hexdigest()[:32]
        receipt = named_key(self.prefix, "lock", f"released:{which}")
        return _call("release", (grant.key, receipt), _token(grant), grant.owner, RECEIPT_MS)

    def forget(self, identity: str | bytes, fencing_token: int) -> Call:
        """Take it away from whoever has this grant."""
        if isinstance(fencing_token, bool) or not isinstance(fencing_token, int):
            raise ConfigurationError(f"fencing_token must be the number that locked_by() shows, got {fencing_token!r}")
        # Not the receipt of release: the owner must hear that its lock was taken away.
        receipt = named_key(self.prefix, "lock", f"forgotten:{fencing_token}")
        return _call("release", (self.key(identity), receipt), str(fencing_token), "", RECEIPT_MS)

    def look(self, identity: str | bytes) -> Call:
        """Ask who has it."""
        return _call("look", (self.key(identity),))


def answer(raw: Any) -> Answer:
    """Read the reply of lock/acquire.lua."""
    code, *holder = raw
    return Answer(code > 0, code == 2, _info(*holder))  # noqa: PLR2004 - as the script says


def info(raw: Any) -> LockInfo | None:
    """Read the reply of lock/look.lua."""
    return _info(*raw) if raw else None


def _call(verb: str, keys: tuple[str, ...], *arguments: str | int) -> Call:
    return Call(Script.load(f"lock/{verb}", "lock/grant"), (len(keys), *keys, *arguments))


def _info(token: int, since_us: int, left_ms: int, owner: str | bytes) -> LockInfo:
    # A client made with decode_responses=True gives text.
    owner = owner.decode() if isinstance(owner, bytes) else owner
    return LockInfo(owner, token, max(left_ms, 0) / 1000, store_time(since_us))


def _token(grant: Grant) -> str:
    return "" if grant.fencing_token is None else str(grant.fencing_token)
