"""The calls of the fair semaphores, for sync and asyncio alike: arguments checked, replies as values with names."""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_throttle.core.wording import at, seconds
from celery_throttle.errors import NotAcquired
from celery_throttle.primitives.checks import (
    checked_name,
    milliseconds,
    printable,
    program_name,
    shown,
    space,
    whole_number,
)
from celery_throttle.primitives.lease.base import RECEIPT_MS, store_time
from celery_throttle.store.scripts import Call, Script

if TYPE_CHECKING:
    from datetime import datetime

__all__ = [
    "AGAIN",
    "IDLE",
    "STAY",
    "Granted",
    "PermitInfo",
    "SemaphoreCalls",
    "SemaphoreState",
    "Turn",
    "Waits",
    "answer",
    "hint_in",
    "hinted",
    "not_acquired",
    "state",
]

#: Seconds after which somebody who waits without a sign of life leaves the line: three of its own looks.
STAY = 6.0
#: Mailboxes that nobody uses at the moment; each is a connection.
IDLE = 8
#: Seconds between two attempts to subscribe.
AGAIN = 0.2
_MOST_PERMITS = 1_000_000
#: More holders than that are not listed.
_LISTED = 10_000
_NONCE_BYTES = 8
_MOVES_THE_LINE = frozenset({"acquire", "release", "set_limit"})
#: What is left of a lease must be at least this part of it, or the holder asks the store for the whole again.
_FRESH = 2 / 3


@dataclass(frozen=True)
class PermitInfo:
    """Who holds a permit.

    Attributes:
        holder: as given to ``acquire``, or ``host:pid``.
        ticket: its place in the order of all who asked.
        lease_left: seconds until it is free, unless it is renewed.
        since: when it was granted, by the store's clock.
    """

    holder: str
    ticket: int
    lease_left: float
    since: datetime

    def __str__(self) -> str:
        return f"{self.holder} since {at(self.since)}, lease ends in {seconds(self.lease_left)}, ticket {self.ticket}"


@dataclass(frozen=True)
class SemaphoreState:
    """What a semaphore looks like: how many permits there are, how many wait for one, who holds one."""

    limit: int
    waiting: int
    holders: tuple[PermitInfo, ...]


@dataclass(frozen=True)
class Turn:
    """One wish for a permit; asked twice it is still one. ``permit`` is its id: a nonce and the name of the holder."""

    permit: str
    holder: str
    lease: float
    lease_ms: int


@dataclass(frozen=True)
class Granted:
    """The permit is held, at least until ``deadline`` on the clock of ``time.monotonic``."""

    ticket: int
    deadline: float


@dataclass(frozen=True)
class Waits:
    """It stands in line with that ticket; in so many seconds a lease ends that its turn depends on, or infinity."""

    ticket: int
    lease_left: float


class SemaphoreCalls:
    """Builds the calls of one semaphore.

    Args:
        prefix: what all keys begin with.
        name: of the semaphore.
        limit: how many permits there are, if that is not set in the store.
        lease: seconds, for a permit whose holder does not say otherwise.

    Raises:
        ConfigurationError: an argument cannot work; as all methods here.
    """

    def __init__(self, prefix: str, name: str, limit: int, lease: float) -> None:
        milliseconds("lease", lease)
        self.name, self.lease = printable("The name of a semaphore", name), lease
        self._default = whole_number("limit", limit, 1, _MOST_PERMITS)
        self._space = f"{space(prefix)}:semaphore"
        parts = ("leases", "holders", "line", "looks", "waiters", "limit")
        self._keys = tuple(f"{self._space}:{part}:{name}" for part in parts)

    def channel(self) -> str:
        """Return a new channel for hints."""
        return f"{self._space}:hints:{secrets.token_hex(_NONCE_BYTES)}"

    def turn(self, holder: str | None, lease: float | None) -> Turn:
        """Return a new wish for a permit."""
        lease = self.lease if lease is None else lease
        holder = program_name() if holder is None else checked_name("holder", holder)
        return Turn(secrets.token_hex(_NONCE_BYTES) + holder, holder, lease, milliseconds("lease", lease))

    def acquire(self, turn: Turn, stay: float = 0, channel: str = "") -> Call:
        """Ask for the permit, or look what became of it; without ``stay`` it does not wait, or not any longer.

        Args:
            turn: whose.
            stay: for how many seconds it stays in line without asking again.
            channel: where it hears of its permit.
        """
        return self._call("acquire", turn.permit, turn.lease_ms, round(stay * 1000), channel)

    def renew(self, turn: Turn, lease: float) -> Call:
        """Let the lease end that many seconds from now."""
        return self._call("renew", turn.permit, milliseconds("lease", lease))

    def release(self, turn: Turn) -> Call:
        """Give the permit back, or leave the line."""
        receipt = f"{self._space}:released:{turn.permit[: 2 * _NONCE_BYTES]}"
        return self._call("release", turn.permit, RECEIPT_MS, keys=(receipt,))

    def set_limit(self, limit: int | None) -> Call:
        """Store how many permits there are; None: as many as each caller says."""
        value = "" if limit is None else whole_number("limit", limit, 0, _MOST_PERMITS)
        return self._call("set_limit", "", value)

    def look(self, listed: int = 0) -> Call:
        """Ask for everything, and for so many holders."""
        return self._call("look", "", listed)

    def look_at_all(self) -> Call:
        """Ask for everything with the holders."""
        return self.look(_LISTED)

    def _call(self, verb: str, permit: str, *rest: str | int, keys: tuple[str, ...] = ()) -> Call:
        shared = ("semaphore/permits", "semaphore/line") if verb in _MOVES_THE_LINE else ("semaphore/permits",)
        script = Script.load(f"semaphore/{verb}", *shared)
        return Call(script, (len(self._keys) + len(keys), *self._keys, *keys, self._default, permit, *rest))


def answer(raw: Any, turn: Turn, asked_at: float) -> Granted | Waits | None:
    """Read the reply of semaphore/acquire.lua to a call that was sent then; None: it neither has it nor waits."""
    code, ticket, _, next_ms = raw
    if code > 0:
        return Granted(ticket, asked_at + turn.lease)
    return Waits(ticket, next_ms / 1000 if next_ms >= 0 else math.inf) if code == 0 else None


def hint_in(message: dict[str, Any] | None) -> str | None:
    """Return what a message of redis-py says; '' if it is about the subscription."""
    if message is None:
        return None
    data = message["data"] if message["type"] == "message" else ""
    return data.decode() if isinstance(data, bytes) else str(data)


def hinted(hint: str | None, turn: Turn, waits: Waits, asked_at: float) -> Granted | None:
    """Read a hint; None if it is not about this permit, or if its lease may have gone for the most part.

    Nor if it is about another place in line than that of the last answer, which was asked for at ``asked_at``: with
    that ticket, the permit was granted after it.
    """
    lease_ms, _, rest = (hint or "").partition(" ")
    ticket, _, permit = rest.partition(" ")
    if permit != turn.permit or int(ticket) != waits.ticket:
        return None
    deadline = asked_at + int(lease_ms) / 1000
    return Granted(int(ticket), deadline) if deadline - time.monotonic() >= turn.lease * _FRESH else None


def state(raw: Any) -> SemaphoreState:
    """Read the reply of semaphore/look.lua."""
    limit, waiting, *listed = raw
    rows = zip(listed[::4], listed[1::4], listed[2::4], listed[3::4], strict=True)
    return SemaphoreState(limit, waiting, tuple(_info(*row) for row in rows))


def not_acquired(name: str, timeout: float | None) -> NotAcquired:
    """Return the error of a block that got no permit."""
    return NotAcquired(f"No permit of {shown(name)} was free for {timeout} seconds")


def _info(permit: str | bytes, left_ms: int, ticket: int, since_us: int) -> PermitInfo:
    # A client made with decode_responses=True gives text.
    permit = permit.decode() if isinstance(permit, bytes) else permit
    return PermitInfo(permit[2 * _NONCE_BYTES :], ticket, left_ms / 1000, store_time(since_us))
