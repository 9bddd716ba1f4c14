"""The store calls of the fair semaphores, for sync and asyncio: check arguments, read replies."""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_throttle.core.checks import seconds, text, whole
from celery_throttle.core.wording import at
from celery_throttle.core.wording import seconds as duration
from celery_throttle.primitives.checks import LEAST, program_name, space
from celery_throttle.primitives.lease import RECEIPT_MS, store_time
from celery_throttle.store.scripts import Call, Script

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["LISTED", "STAY", "Granted", "PermitInfo", "SemaphoreCalls", "Turn", "Waits", "answer", "hinted", "state"]

#: Seconds without a call of `acquire` after which a waiting caller leaves the line: three times the pause between two.
STAY = 6.0
_MOST_PERMITS = 1_000_000
#: Most holders in a list.
LISTED = 10_000
_NONCE_BYTES = 8
_MOVES_THE_LINE = frozenset({"acquire", "release", "set_limit"})
#: The part of a lease that must be left when a hint arrives; with less, the caller asks the store for a full lease.
_FRESH = 2 / 3


@dataclass(frozen=True)
class PermitInfo:
    """One held permit.

    Attributes:
        holder: the name given to ``acquire``, or ``host:pid``.
        ticket: the position in the order of all acquire calls.
        lease_left: seconds until the permit is free, unless it is renewed.
        since: the time of the grant, by the store's clock.
    """

    holder: str
    ticket: int
    lease_left: float
    since: datetime

    def __str__(self) -> str:
        return f"{self.holder} since {at(self.since)}, lease ends in {duration(self.lease_left)}, ticket {self.ticket}"


@dataclass(frozen=True)
class Turn:
    """One request for a permit; sent twice, it gets one permit. ``permit`` is its id: a nonce and the holder's name."""

    permit: str
    holder: str
    lease: float


@dataclass(frozen=True)
class Granted:
    """The permit is held, at least until ``deadline`` on the clock of ``time.monotonic``."""

    ticket: int
    deadline: float


@dataclass(frozen=True)
class Waits:
    """The request waits in line with this ticket; ``lease_left``: seconds until the end of the lease ahead, or inf."""

    ticket: int
    lease_left: float


class SemaphoreCalls:
    """Builds the calls of one semaphore; ``limit``: if none is set in the store; ``lease``: the default, in seconds.

    Raises:
        ConfigurationError: an argument cannot work; all methods raise it, too.
    """

    def __init__(self, prefix: str, name: str, limit: int, lease: float) -> None:
        self.name, self.lease = text("semaphore name", name), seconds("lease", lease, LEAST)
        self._default = whole("limit", limit, most=_MOST_PERMITS)
        self._space = f"{space(prefix)}:semaphore"
        parts = ("leases", "holders", "line", "looks", "waiters", "limit")
        self._keys = tuple(f"{self._space}:{part}:{name}" for part in parts)

    def channel(self) -> str:
        """Return a new channel for hints."""
        return f"{self._space}:hints:{secrets.token_hex(_NONCE_BYTES)}"

    def turn(self, holder: str | None, lease: float | None) -> Turn:
        """Return a new request for a permit."""
        lease = self.lease if lease is None else seconds("lease", lease, LEAST)
        holder = program_name() if holder is None else text("holder", holder, usual="web-1")
        return Turn(secrets.token_hex(_NONCE_BYTES) + holder, holder, lease)

    def acquire(self, turn: Turn, stay: float = 0, channel: str = "") -> Call:
        """Return the call that asks for a permit, or asks again; with ``stay`` 0 it does not wait, or leaves the line.

        Args:
            turn: the request.
            stay: seconds that the request stays in line without another call.
            channel: the channel for the hint that the permit is granted.
        """
        return self._call("acquire", turn.permit, round(turn.lease * 1000), round(stay * 1000), channel)

    def renew(self, turn: Turn, lease: float) -> Call:
        """Return the call that sets the rest of the lease to ``lease`` seconds."""
        return self._call("renew", turn.permit, round(lease * 1000))

    def release(self, turn: Turn) -> Call:
        """Return the call that releases the permit, or leaves the line."""
        receipt = f"{self._space}:released:{turn.permit[: 2 * _NONCE_BYTES]}"
        return self._call("release", turn.permit, RECEIPT_MS, keys=(receipt,))

    def set_limit(self, limit: int | None) -> Call:
        """Return the call that stores the number of permits; None: the number of each caller."""
        value = "" if limit is None else whole("limit", limit, 0, _MOST_PERMITS)
        return self._call("set_limit", "", value)

    def look(self, listed: int = 0) -> Call:
        """Return the call that reads the state with at most ``listed`` holders."""
        return self._call("look", "", listed)

    def _call(self, verb: str, permit: str, *rest: str | int, keys: tuple[str, ...] = ()) -> Call:
        shared = ("semaphore/permits", "semaphore/line") if verb in _MOVES_THE_LINE else ("semaphore/permits",)
        script = Script.load(f"semaphore/{verb}", *shared)
        return Call(script, (len(self._keys) + len(keys), *self._keys, *keys, self._default, permit, *rest))


def answer(raw: Any, turn: Turn, asked_at: float) -> Granted | Waits | None:
    """Parse the reply of semaphore/acquire.lua to a call sent at ``asked_at``; None: no permit, and not in line."""
    code, ticket, _, next_ms = raw
    if code > 0:
        return Granted(ticket, asked_at + turn.lease)
    return Waits(ticket, next_ms / 1000 if next_ms >= 0 else math.inf) if code == 0 else None


def hinted(hint: str | None, turn: Turn, waits: Waits, asked_at: float) -> Granted | None:
    """Parse a hint; None if it is about another permit or another ticket, or if too little may be left of the lease.

    ``asked_at`` is the time of the call that returned ``waits``. A grant to the same ticket is later than that call, so
    the lease lasts at least from then on.
    """
    lease_ms, _, rest = (hint or "").partition(" ")
    ticket, _, permit = rest.partition(" ")
    if permit != turn.permit or int(ticket) != waits.ticket:
        return None
    deadline = asked_at + int(lease_ms) / 1000
    return Granted(int(ticket), deadline) if deadline - time.monotonic() >= turn.lease * _FRESH else None


def state(raw: Any) -> tuple[int, int, tuple[PermitInfo, ...]]:
    """Parse the reply of semaphore/look.lua: the number of permits, the number of waiting calls, and the holders."""
    limit, waiting, *listed = raw
    rows = zip(listed[::4], listed[1::4], listed[2::4], listed[3::4], strict=True)
    return limit, waiting, tuple(_info(*row) for row in rows)


def _info(permit: str | bytes, left_ms: int, ticket: int, since_us: int) -> PermitInfo:
    # A client with decode_responses=True returns text.
    permit = permit.decode() if isinstance(permit, bytes) else permit
    return PermitInfo(permit[2 * _NONCE_BYTES :], ticket, left_ms / 1000, store_time(since_us))
