"""The store calls of the identity locks, for sync and asyncio: check arguments, read replies."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_throttle.core.checks import seconds, text, whole
from celery_throttle.core.wording import at
from celery_throttle.core.wording import seconds as duration
from celery_throttle.errors import ConfigurationError
from celery_throttle.primitives.checks import LEAST, named_key, program_name, shown
from celery_throttle.primitives.lease import RECEIPT_MS, store_time
from celery_throttle.store.scripts import Call, Script

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["Attempt", "Grant", "LockCalls", "LockInfo", "answer", "info"]


@dataclass(frozen=True)
class LockInfo:
    """The present grant of a lock.

    Attributes:
        owner: the name given to ``acquire``, or ``host:pid:nonce``.
        fencing_token: the token of this grant.
        lease_left: seconds until the lock is free, unless it is renewed.
        since: the time of the grant, by the store's clock.
    """

    owner: str
    fencing_token: int
    lease_left: float
    since: datetime

    def __str__(self) -> str:
        return (
            f"{self.owner} since {at(self.since)}, lease ends in {duration(self.lease_left)}, "
            f"fencing token {self.fencing_token}"
        )


@dataclass(frozen=True)
class Grant:
    """One grant of a lock. Without a token, the present grant of the owner."""

    key: str
    owner: str
    fencing_token: int | None = None


@dataclass(frozen=True)
class Attempt:
    """An attempt to get a grant; sent twice, the call still takes the lock once."""

    identity: str | bytes
    grant: Grant
    lease: float
    call: Call


class LockCalls:
    """Builds the calls for the locks of one prefix; ``lease``: the default, in seconds.

    Raises:
        ConfigurationError: an argument cannot work; all methods raise it, too.
    """

    def __init__(self, prefix: str, lease: float) -> None:
        self.prefix, self.lease = prefix, seconds("lease", lease, LEAST)
        self._fence = named_key(prefix, "lock", "fence")

    def key(self, identity: str | bytes) -> str:
        """Return the key of an identity, always of the same length; text counts as its UTF-8 bytes."""
        if not isinstance(identity, str | bytes):
            raise ConfigurationError(f"identity must be str or bytes, got {type(identity).__name__}: {shown(identity)}")
        # surrogatepass, because a text with a lone surrogate, which is no UTF-8, must have a lock of its own, too.
        raw = identity.encode("utf-8", "surrogatepass") if isinstance(identity, str) else identity
        return named_key(self.prefix, "lock", hashlib.sha256(raw).hexdigest())

    def acquire(self, identity: str | bytes, lease: float | None, owner: str | None) -> Attempt:
        """Return the attempt to take the lock."""
        lease = self.lease if lease is None else seconds("lease", lease, LEAST)
        owner = f"{program_name()}:{secrets.token_hex(8)}" if owner is None else text("owner", owner, usual="web-1")
        grant = Grant(self.key(identity), owner)
        call = _call("acquire", (grant.key, self._fence), owner, round(lease * 1000))
        return Attempt(identity, grant, lease, call)

    def renew(self, grant: Grant, lease: float) -> Call:
        """Return the call that sets the rest of the lease to ``lease`` seconds."""
        return _call("renew", (grant.key,), _token(grant), grant.owner, round(lease * 1000))

    def release(self, grant: Grant) -> Call:
        """Return the call that releases the lock."""
        which = _token(grant) or hashlib.sha256(grant.owner.encode()).hexdigest()[:32]
        receipt = named_key(self.prefix, "lock", f"released:{which}")
        return _call("release", (grant.key, receipt), _token(grant), grant.owner, RECEIPT_MS)

    def forget(self, identity: str | bytes, fencing_token: int) -> Call:
        """Return the call that ends the grant with this token."""
        whole("fencing_token", fencing_token, 0, 2**63, fix="the number that locked_by() shows")
        # Not the receipt of release, with which a later release by the owner would count as a success.
        receipt = named_key(self.prefix, "lock", f"forgotten:{fencing_token}")
        return _call("release", (self.key(identity), receipt), str(fencing_token), "", RECEIPT_MS)

    def look(self, identity: str | bytes) -> Call:
        """Return the call that reads the present grant."""
        return _call("look", (self.key(identity),))


def answer(raw: Any) -> tuple[bool, LockInfo]:
    """Parse the reply of lock/acquire.lua: whether the owner of the attempt has the lock now, and the present grant."""
    code, *holder = raw
    return code > 0, _info(*holder)


def info(raw: Any) -> LockInfo | None:
    """Parse the reply of lock/look.lua."""
    return _info(*raw) if raw else None


def _call(verb: str, keys: tuple[str, ...], *arguments: str | int) -> Call:
    return Call(Script.load(f"lock/{verb}", "lock/grant"), (len(keys), *keys, *arguments))


def _info(token: int, since_us: int, left_ms: int, owner: str | bytes) -> LockInfo:
    # A client with decode_responses=True returns text.
    owner = owner.decode() if isinstance(owner, bytes) else owner
    return LockInfo(owner, token, max(left_ms, 0) / 1000, store_time(since_us))


def _token(grant: Grant) -> str:
    return "" if grant.fencing_token is None else str(grant.fencing_token)
