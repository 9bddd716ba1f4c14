"""Call several independent servers at the same time from an event loop; a slow server does not delay the others."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_throttle.primitives.lease.aio import in_background
from celery_throttle.primitives.redlock.votes import AGAIN, BACKLOG, Failed
from celery_throttle.store.scripts import execute_async

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis.asyncio import Redis

    from celery_throttle.store.scripts import Call

__all__ = ["AsyncNode", "AsyncQuestion", "ask", "deliver"]


class AsyncQuestion:
    """As `Question`, for a task that waits for the replies."""

    def __init__(self, call: Call, servers: int, insist_until: float) -> None:
        self.call, self.insist_until, self.withdrawn = call, insist_until, False
        self._replies: list[object] = [None] * servers
        self._changed = asyncio.Event()

    def reply(self, index: int, reply: object) -> None:
        """As `Question.reply`."""
        self._replies[index] = reply
        self._changed.set()

    async def wait(self, timeout: float, enough: Callable[[Sequence[object]], bool]) -> list[object]:
        """As `Question.wait`."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._until(enough), timeout)
        return list(self._replies)

    def withdraw(self) -> None:
        """As `Question.withdraw`."""
        self.withdrawn = True

    async def _until(self, enough: Callable[[Sequence[object]], bool]) -> None:
        while not enough(self._replies):
            self._changed.clear()
            await self._changed.wait()


class AsyncNode:
    """As `Node`, with a task instead of a thread."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._jobs: deque[tuple[AsyncQuestion, int]] = deque(maxlen=BACKLOG)
        self._running = False
        self._asked_at: float | None = None

    def send(self, question: AsyncQuestion, index: int) -> None:
        """As `Node.send`."""
        self._jobs.append((question, index))
        if not self._running:
            self._running = True
            in_background(self._work())

    def silent_for(self) -> float:
        """As `Node.silent_for`."""
        return 0.0 if self._asked_at is None else time.monotonic() - self._asked_at

    async def _work(self) -> None:
        try:
            while self._jobs:
                question, index = self._jobs.popleft()
                if not question.withdrawn:
                    self._asked_at = time.monotonic()
                    question.reply(index, await self._carry_out(question))
                    self._asked_at = None
        finally:
            # Also after the end of the loop, so that the next loop starts a new task.
            self._running, self._asked_at = False, None

    async def _carry_out(self, question: AsyncQuestion) -> object:
        while True:
            try:
                return await execute_async(self._client, question.call)
            except (RedisConnectionError, RedisTimeoutError) as error:
                if time.monotonic() >= question.insist_until:
                    return Failed(error)
                await asyncio.sleep(AGAIN)
            except Exception as error:  # noqa: BLE001 - one server that fails must not stop the others
                return Failed(error)


def ask(nodes: Sequence[AsyncNode], call: Call, patience: float) -> AsyncQuestion:
    """As `sync_nodes.ask`."""
    question = AsyncQuestion(call, len(nodes), 0.0)
    for index, node in enumerate(nodes):
        if node.silent_for() > patience:
            question.reply(index, Failed(TimeoutError("does not answer")))
        else:
            node.send(question, index)
    return question


def deliver(nodes: Sequence[AsyncNode], call: Call, insist: float) -> AsyncQuestion:
    """As `sync_nodes.deliver`."""
    question = AsyncQuestion(call, len(nodes), time.monotonic() + insist)
    for index, node in enumerate(nodes):
        node.send(question, index)
    return question
