"""Call the servers of a lock at the same time, and count their votes: more than half of them must agree."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from celery_throttle.errors import ConfigurationError, StoreUnavailable
from celery_throttle.primitives.checks import checked_client
from celery_throttle.primitives.redlock_nodes import AsyncNode, Failed, Node

if TYPE_CHECKING:
    from celery_throttle.primitives.redlock_nodes import Question
    from celery_throttle.store.scripts import Call

__all__ = ["Quorum"]

_FEWEST = 3
#: Returns whether a reply is a vote for yes.
_Vote = Callable[[object], bool]


class Quorum:
    """The servers of a lock; each call goes to all of them at the same time.

    Args:
        clients: one for each server.
        node_timeout: seconds to wait for replies.
        awaits: whether the clients are for asyncio.

    Raises:
        ConfigurationError: the list or a client cannot work, or there are fewer than 3: then a majority has no meaning.
    """

    def __init__(self, clients: Any, node_timeout: float, *, awaits: bool) -> None:
        if not isinstance(clients, Sequence) or isinstance(clients, str):
            raise ConfigurationError(f"Redlock needs a list of clients, got {clients!r:.80}: write Redlock([a, b, c])")
        make = AsyncNode if awaits else Node
        self._nodes = [make(checked_client(client, awaits=awaits)) for client in clients]
        if len(clients) < _FEWEST:
            raise ConfigurationError(
                f"Redlock needs {_FEWEST} or more independent servers, got {len(clients)}: for one, use IdentityLock"
            )
        self._size, self._timeout = len(clients) // 2 + 1, node_timeout

    async def take(self, call: Call) -> bool:
        """Run lock/acquire.lua; return whether a majority granted the lock.

        Raises:
            StoreUnavailable: less than a majority of the servers replied.
        """
        question = self._ask(call)
        taken = False
        try:
            replies = await self._replies(question, _granted)
            taken = _count(replies, _granted) >= self._size
            if not taken and len(_missing(replies)) > len(replies) - self._size:
                raise self._unavailable(replies)
        finally:
            if not taken:
                question.withdraw()
        return taken

    async def keep(self, call: Call) -> bool:
        """Run lock/acquire.lua for a held lock; return whether a majority still had the lock.

        A server that came back empty takes the lock again, but its vote does not count until the next renewal.

        Raises:
            StoreUnavailable: too few servers replied for a result.
        """
        return await self._verdict(self._ask(call), _still_held)

    async def give_back(self, call: Call, lease: float) -> bool:
        """Run lock/release.lua; return whether a majority still had the lock.

        A server that is out of reach gets the call when it is back, unless the lease is over by then.

        Raises:
            StoreUnavailable: too few servers replied for a result.
        """
        return await self._verdict(self.give_back_later(call, lease), _ended)

    def give_back_later(self, call: Call, lease: float) -> Question:
        """As `give_back`, without waiting for replies."""
        question = self._nodes[0].question(call, len(self._nodes), time.monotonic() + lease)
        for index, node in enumerate(self._nodes):
            node.send(question, index)
        return question

    def _ask(self, call: Call) -> Question:
        """Send a call to all servers; one that has not answered an earlier call in time counts as failed at once."""
        question = self._nodes[0].question(call, len(self._nodes), 0.0)
        for index, node in enumerate(self._nodes):
            if node.silent_for() > self._timeout:
                question.reply(index, Failed(TimeoutError("does not answer")))
            else:
                node.send(question, index)
        return question

    async def _replies(self, question: Question, vote: _Vote) -> list[object]:
        """Wait until the replies decide the vote."""

        def decided(replies: Sequence[object]) -> bool:
            yes, missing = _count(replies, vote), len(_missing(replies))
            # Wait for servers without a reply as long as they can change the result, also after failures of others.
            return yes >= self._size or yes + missing < self._size or None not in replies

        return await question.wait(self._timeout, decided)

    async def _verdict(self, question: Question, vote: _Vote) -> bool:
        """Return whether a majority voted yes; a server without a reply may have voted either way."""
        replies = await self._replies(question, vote)
        yes, missing = _count(replies, vote), len(_missing(replies))
        if yes < self._size <= yes + missing:
            raise self._unavailable(replies)
        return yes >= self._size

    def _unavailable(self, replies: Sequence[object]) -> StoreUnavailable:
        missing = _missing(replies)
        error = StoreUnavailable(
            f"{len(missing)} of {len(replies)} servers did not answer within {self._timeout:g} seconds"
        )
        error.__cause__ = next((reply.error for reply in missing if isinstance(reply, Failed)), None)
        return error


def _granted(reply: object) -> bool:
    """Return whether lock/acquire.lua granted the lock."""
    return isinstance(reply, list) and reply[0] > 0


def _still_held(reply: object) -> bool:
    """Return whether lock/acquire.lua found the lock held by the same owner."""
    return isinstance(reply, list) and reply[0] == 2  # noqa: PLR2004 - as in the script


def _ended(reply: object) -> bool:
    """Return whether lock/release.lua ended the grant."""
    return reply == 1


def _missing(replies: Sequence[object]) -> list[object]:
    return [reply for reply in replies if reply is None or isinstance(reply, Failed)]


def _count(replies: Sequence[object], vote: _Vote) -> int:
    return sum(vote(reply) for reply in replies)
