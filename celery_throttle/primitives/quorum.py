"""What the majority of several servers thinks of a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_throttle.errors import StoreUnavailable
from celery_throttle.primitives.nodes import Failed, Node, ask

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis import Redis

    from celery_throttle.store.scripts import Call

__all__ = ["Quorum", "Votes", "ended", "granted", "still_held"]


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


class Quorum:
    """The servers, asked at the same time.

    Args:
        clients: one for each server.
        node_timeout: seconds to wait for replies.
    """

    def __init__(self, clients: Sequence[Redis], node_timeout: float) -> None:
        self._nodes = [Node(client) for client in clients]
        self._timeout = node_timeout
        self._votes = Votes(len(clients), node_timeout)

    def take(self, call: Call) -> bool:
        """Carry out lock_acquire.lua; whether a majority granted it.

        Raises:
            StoreUnavailable: too few servers replied, whatever they replied.
        """
        question, replies = ask(self._nodes, call, timeout=self._timeout, enough=self._votes.decided(granted))
        try:
            taken = self._votes.taken(replies)
        except StoreUnavailable:
            question.withdrawn = True
            raise
        question.withdrawn = not taken
        return taken

    def keep(self, call: Call) -> bool:
        """Carry out lock_acquire.lua for what is held; whether a majority had it still.

        A server that came back empty takes the lock again, but its vote does not count until the next time.

        Raises:
            StoreUnavailable: too few servers replied to tell.
        """
        _, replies = ask(self._nodes, call, timeout=self._timeout, enough=self._votes.decided(still_held))
        return self._votes.verdict(replies, still_held)

    def give_back(self, call: Call, lease: float) -> bool:
        """Carry out lock_release.lua; whether a majority had it still.

        A server that is out of reach gets it when it is back, unless the lease is over by then.

        Raises:
            StoreUnavailable: too few servers replied to tell.
        """
        _, replies = ask(self._nodes, call, timeout=self._timeout, enough=self._votes.decided(ended), insist=lease)
        return self._votes.verdict(replies, ended)

    def give_back_later(self, call: Call, lease: float) -> None:
        """As `give_back`, without waiting for it."""
        ask(self._nodes, call, timeout=0, enough=lambda replies: True, insist=lease)


def _missing(replies: Sequence[object]) -> list[object]:
    return [reply for reply in replies if reply is None or isinstance(reply, Failed)]


def _count(replies: Sequence[object], vote: Callable[[object], bool]) -> int:
    return sum(vote(reply) for reply in replies)


def granted(reply: object) -> bool:
    """Whether lock_acquire.lua granted it."""
    return isinstance(reply, list) and reply[0] > 0


def still_held(reply: object) -> bool:
    """Whether lock_acquire.lua found it held by the same owner."""
    return isinstance(reply, list) and reply[0] == 2  # noqa: PLR2004 - as the script says


def ended(reply: object) -> bool:
    """Whether lock_release.lua ended it."""
    return reply == 1
