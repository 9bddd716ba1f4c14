"""Call several independent servers at the same time; a slow server delays neither the others nor the caller.

A thread or a task for each server sends its calls. They wait by other means, so questions and nodes are of two kinds.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_throttle.primitives.driving import ask, run, settled
from celery_throttle.primitives.lease import in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_throttle.store.scripts import Call

__all__ = ["AsyncNode", "Failed", "Node", "Question"]

#: Seconds between two attempts to send a release to a server out of reach.
AGAIN = 0.1
#: Most queued calls for a node that does not answer. Above it the oldest are dropped, because their leases end first.
BACKLOG = 1000
#: Seconds without a call after which the thread of a node ends.
_IDLE = 10.0


@dataclass(frozen=True)
class Failed:
    """Stands for the missing reply of a server."""

    error: Exception


class Question:
    """One call to several servers, and their replies so far; None: no reply yet.

    Args:
        call: the call.
        servers: number of servers.
        insist_until: until when the call is repeated to a server out of reach, on the clock of ``time.monotonic``.
    """

    def __init__(self, call: Call, servers: int, insist_until: float) -> None:
        self.call, self.insist_until, self.withdrawn = call, insist_until, False
        self._replies: list[object] = [None] * servers
        self._changed = threading.Condition()

    def reply(self, index: int, reply: object) -> None:
        """Store the reply of a server."""
        with self._changed:
            self._replies[index] = reply
            self._changed.notify_all()

    async def wait(self, timeout: float, enough: Callable[[Sequence[object]], bool]) -> list[object]:
        """Wait until the replies are enough, at most ``timeout`` seconds; return the replies so far."""
        with self._changed:
            self._changed.wait_for(lambda: enough(self._replies), timeout)
            return list(self._replies)

    def withdraw(self) -> None:
        """Do not send the call to servers that it has not been sent to yet."""
        self.withdrawn = True


class AsyncQuestion(Question):
    """As `Question`, for a task that waits for the replies."""

    def __init__(self, call: Call, servers: int, insist_until: float) -> None:
        super().__init__(call, servers, insist_until)
        self._came = asyncio.Event()

    def reply(self, index: int, reply: object) -> None:
        """As `Question.reply`."""
        self._replies[index] = reply
        self._came.set()

    async def wait(self, timeout: float, enough: Callable[[Sequence[object]], bool]) -> list[object]:
        """As `Question.wait`."""
        with suppress(asyncio.TimeoutError):
            await settled(asyncio.wait_for(self._until(enough), timeout))
        return list(self._replies)

    async def _until(self, enough: Callable[[Sequence[object]], bool]) -> None:
        while not enough(self._replies):
            self._came.clear()
            await self._came.wait()


class Node:
    """One server. A thread of its own sends the calls in order, and ends when there is nothing to do.

    The order matters after an acquire that timed out: the server must get the release after it. A frozen server still
    has the acquire in its socket, even if the client has closed its side.
    """

    question: type[Question] = Question

    def __init__(self, client: Any) -> None:
        self._client = client
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._jobs: deque[tuple[Question, int]] = deque(maxlen=BACKLOG)
        self._running = False
        self._asked_at: float | None = None

    def send(self, question: Question, index: int) -> None:
        """Send a call after all earlier ones; the question gets the reply, or `Failed`, for server ``index``."""
        if self._pid != os.getpid():
            self._begin()  # forked: the thread is in the parent
        with self._changed:
            self._jobs.append((question, index))
            self._changed.notify()
            if not self._running:
                self._start()  # first: if no thread can be started, the next call tries again
                self._running = True

    def _start(self) -> None:
        threading.Thread(target=self._work, name="celery_throttle-node", daemon=True).start()

    def silent_for(self) -> float:
        """Return the seconds since the server got a call that it has not answered; 0.0 if there is none."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None or self._pid != os.getpid() else time.monotonic() - asked_at

    def _work(self) -> None:
        try:
            while job := self._next():
                run(self._answer(*job, time.sleep))
        except BaseException:
            self._running, self._asked_at = False, None  # so that the next call starts a new thread
            raise

    async def _answer(self, question: Question, index: int, sleep: Callable[[float], Any]) -> None:
        if question.withdrawn:
            return
        self._asked_at = time.monotonic()
        reply = await self._carry_out(question, sleep)
        self._asked_at = None
        question.reply(index, reply)

    async def _carry_out(self, question: Question, sleep: Callable[[float], Any]) -> object:
        while True:
            try:
                return await ask(self._client, question.call)
            except (RedisConnectionError, RedisTimeoutError) as error:
                if time.monotonic() >= question.insist_until:
                    return Failed(error)
                await settled(sleep(AGAIN))
            except Exception as error:  # noqa: BLE001 - one server that fails must not stop the others
                return Failed(error)

    def _next(self) -> tuple[Question, int] | None:
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._jobs), _IDLE):
                self._running = False
                return None
            return self._jobs.popleft()


class AsyncNode(Node):
    """As `Node`, with a task instead of a thread."""

    question = AsyncQuestion

    def _start(self) -> None:
        in_background(self._work_in_loop())

    async def _work_in_loop(self) -> None:
        try:
            while self._jobs:
                await self._answer(*self._jobs.popleft(), asyncio.sleep)
        finally:
            # Also after the end of the loop, so that the next loop starts a new task.
            self._running, self._asked_at = False, None
