"""What several servers think of a lock, and what follows if they differ: no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_throttle.errors import ConfigurationError, StoreUnavailable
from celery_throttle.primitives.checks import checked_client

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "AGAIN",
    "BACKLOG",
    "RETRY",
    "Failed",
    "Votes",
    "check_servers",
    "checked_drift",
    "ended",
    "ends_sooner",
    "granted",
    "still_held",
]

#: Seconds between two attempts; random, so that those who split the votes do not split them again.
RETRY = (0.02, 0.2)
#: Seconds between two attempts to reach a server that is owed a release.
AGAIN = 0.1
#: Calls that may pile up for a node that does not answer; then the oldest are dropped, whose leases end soonest.
BACKLOG = 1000
_FEWEST = 3
_MAX_DRIFT = 0.5
#: Expiry on the servers is exact to a millisecond; twice that, as the algorithm has it.
_PRECISION = 0.002


@dataclass(frozen=True)
class Failed:
    """What stands in for the reply of a server that gave none."""

    error: Exception


class Votes:
    """How the votes of so many servers count: more than half of them must agree.

    Args:
        servers: how many there are.
        node_timeout: seconds that were waited for their replies.
    """

    def __init__(self, servers: int, node_timeout: float) -> None:
        self._size, self._timeout = servers // 2 + 1, node_timeout

    def decided(self, vote: Callable[[object], bool]) -> Callable[[Sequence[object]], bool]:
        """Return what tells whether the replies so far are enough."""

        def decided(replies: Sequence[object]) -> bool:
            yes, missing = _count(replies, vote), len(_missing(replies))
            # Those who have not replied yet are waited for as long as they can turn it, also after others have failed.
            return yes >= self._size or yes + missing < self._size or None not in replies

        return decided

    def taken(self, replies: Sequence[object]) -> bool:
        """Return whether a majority granted it.

        Raises:
            StoreUnavailable: too few servers replied, whatever they replied.
        """
        if _count(replies, granted) >= self._size:
            return True
        if len(_missing(replies)) > len(replies) - self._size:
            raise self._unavailable(replies)
        return False

    def verdict(self, replies: Sequence[object], vote: Callable[[object], bool]) -> bool:
        """Return what a majority says; those who are silent might say either.

        Raises:
            StoreUnavailable: too few servers replied to tell.
        """
        yes, missing = _count(replies, vote), len(_missing(replies))
        if yes >= self._size:
            return True
        if yes + missing >= self._size:
            raise self._unavailable(replies)
        return False

    def _unavailable(self, replies: Sequence[object]) -> StoreUnavailable:
        missing = _missing(replies)
        error = StoreUnavailable(
            f"{len(missing)} of {len(replies)} servers did not answer within {self._timeout:g} seconds"
        )
        error.__cause__ = next((reply.error for reply in missing if isinstance(reply, Failed)), None)
        return error


def granted(reply: object) -> bool:
    """Whether lock/acquire.lua granted it."""
    return isinstance(reply, list) and reply[0] > 0


def still_held(reply: object) -> bool:
    """Whether lock/acquire.lua found it held by the same owner."""
    return isinstance(reply, list) and reply[0] == 2  # noqa: PLR2004 - as the script says


def ended(reply: object) -> bool:
    """Whether lock/release.lua ended it."""
    return reply == 1


def check_servers(clients: object, *, awaits: bool = False) -> None:
    """Raise a ConfigurationError if these are no servers, or too few for a majority to mean something."""
    if not isinstance(clients, Sequence) or isinstance(clients, str):
        raise ConfigurationError(f"Redlock needs a list of clients, got {clients!r:.80}: write Redlock([a, b, c])")
    for client in clients:
        checked_client(client, awaits=awaits)
    if len(clients) < _FEWEST:
        raise ConfigurationError(
            f"Redlock needs {_FEWEST} or more independent servers, got {len(clients)}: for one, use IdentityLock"
        )


def checked_drift(drift: object) -> float:
    """Return how far clocks may run apart, if that is a part of a lease; else raise a ConfigurationError."""
    if isinstance(drift, bool) or not isinstance(drift, int | float) or not 0 <= drift <= _MAX_DRIFT:
        raise ConfigurationError(
            f"drift must be a part of the lease, 0 to {_MAX_DRIFT}, got {drift!r}: write drift=0.01"
        )
    return float(drift)


def ends_sooner(lease: float, drift: float) -> float:
    """Return how many seconds sooner than on the servers' clocks a lease ends on ours."""
    return lease * drift + _PRECISION


def _missing(replies: Sequence[object]) -> list[object]:
    return [reply for reply in replies if reply is None or isinstance(reply, Failed)]


def _count(replies: Sequence[object], vote: Callable[[object], bool]) -> int:
    return sum(vote(reply) for reply in replies)
