"""Count the votes of several servers for a lock, without I/O."""

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

#: Seconds between two attempts; random, so that callers that split the votes do not split them again.
RETRY = (0.02, 0.2)
#: Seconds between two attempts to send a release to a server out of reach.
AGAIN = 0.1
#: Most queued calls for a node that does not answer. Above it the oldest are dropped, because their leases end first.
BACKLOG = 1000
_FEWEST = 3
_MAX_DRIFT = 0.5
#: Twice the precision of expiry on the servers (one millisecond), as in the algorithm.
_PRECISION = 0.002


@dataclass(frozen=True)
class Failed:
    """Stands for the missing reply of a server."""

    error: Exception


class Votes:
    """Counts the votes of the servers: more than half of them must agree.

    Args:
        servers: number of servers.
        node_timeout: seconds that callers wait for replies.
    """

    def __init__(self, servers: int, node_timeout: float) -> None:
        self._size, self._timeout = servers // 2 + 1, node_timeout

    def decided(self, vote: Callable[[object], bool]) -> Callable[[Sequence[object]], bool]:
        """Return a function that returns whether the replies so far decide the vote."""

        def decided(replies: Sequence[object]) -> bool:
            yes, missing = _count(replies, vote), len(_missing(replies))
            # Wait for servers without a reply as long as they can change the result, also after failures of others.
            return yes >= self._size or yes + missing < self._size or None not in replies

        return decided

    def taken(self, replies: Sequence[object]) -> bool:
        """Return whether a majority granted the lock.

        Raises:
            StoreUnavailable: less than a majority of the servers replied.
        """
        if _count(replies, granted) >= self._size:
            return True
        if len(_missing(replies)) > len(replies) - self._size:
            raise self._unavailable(replies)
        return False

    def verdict(self, replies: Sequence[object], vote: Callable[[object], bool]) -> bool:
        """Return whether a majority voted yes; a server without a reply may have voted either way.

        Raises:
            StoreUnavailable: too few servers replied for a result.
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
    """Return whether lock/acquire.lua granted the lock."""
    return isinstance(reply, list) and reply[0] > 0


def still_held(reply: object) -> bool:
    """Return whether lock/acquire.lua found the lock held by the same owner."""
    return isinstance(reply, list) and reply[0] == 2  # noqa: PLR2004 - as in the script


def ended(reply: object) -> bool:
    """Return whether lock/release.lua ended the grant."""
    return reply == 1


def check_servers(clients: object, *, awaits: bool = False) -> None:
    """Refuse clients that are none, or fewer than 3; with fewer, a majority has no meaning.

    Raises:
        ConfigurationError: the list or a client cannot work.
    """
    if not isinstance(clients, Sequence) or isinstance(clients, str):
        raise ConfigurationError(f"Redlock needs a list of clients, got {clients!r:.80}: write Redlock([a, b, c])")
    for client in clients:
        checked_client(client, awaits=awaits)
    if len(clients) < _FEWEST:
        raise ConfigurationError(
            f"Redlock needs {_FEWEST} or more independent servers, got {len(clients)}: for one, use IdentityLock"
        )


def checked_drift(drift: object) -> float:
    """Return the drift as a float.

    Raises:
        ConfigurationError: the drift is no number from 0 to 0.5.
    """
    if isinstance(drift, bool) or not isinstance(drift, int | float) or not 0 <= drift <= _MAX_DRIFT:
        raise ConfigurationError(
            f"drift must be a part of the lease, 0 to {_MAX_DRIFT}, got {drift!r}: write drift=0.01"
        )
    return float(drift)


def ends_sooner(lease: float, drift: float) -> float:
    """Return how many seconds earlier than on the servers a lease ends for the holder."""
    return lease * drift + _PRECISION


def _missing(replies: Sequence[object]) -> list[object]:
    return [reply for reply in replies if reply is None or isinstance(reply, Failed)]


def _count(replies: Sequence[object], vote: Callable[[object], bool]) -> int:
    return sum(vote(reply) for reply in replies)
