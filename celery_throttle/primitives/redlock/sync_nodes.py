"""Several independent servers, asked at the same time: none of them can delay the others or the caller."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_throttle.primitives.redlock.votes import AGAIN, BACKLOG, Failed
from celery_throttle.store.scripts import execute

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis import Redis

    from celery_throttle.store.scripts import Call

__all__ = ["Node", "Question", "ask", "tell"]

#: Seconds after which the thread of a node that nobody asks anything ends.
_IDLE = 10.0


class Question:
    """One call to several servers, and what they have replied so far; None: nothing yet.

    Args:
        call: what they are asked to do.
        servers: how many there are.
        insist_until: how long a server that is out of reach is asked again, on the clock of ``time.monotonic``.
    """

    def __init__(self, call: Call, servers: int, insist_until: float) -> None:
        self.call, self.insist_until, self.withdrawn = call, insist_until, False
        self._replies: list[object] = [None] * servers
        self._changed = threading.Condition()

    def reply(self, index: int, reply: object) -> None:
        """Note what a server replied."""
        with self._changed:
            self._replies[index] = reply
            self._changed.notify_all()

    def wait(self, timeout: float, enough: Callable[[Sequence[object]], bool]) -> list[object]:
        """Wait until the replies are enough, at most ``timeout`` seconds; return those that are there."""
        with self._changed:
            self._changed.wait_for(lambda: enough(self._replies), timeout)
            return list(self._replies)

    def withdraw(self) -> None:
        """Do not send it any more to the servers that it has not been sent to yet."""
        self.withdrawn = True


class Node:
    """One server: calls go to it in order, from a thread of its own, which ends when there is nothing to do.

    In order, so that the release after an acquire that nobody waited for any longer comes after it, however late the
    server carries out both: a frozen one has the acquire in its socket, even if our side of it is closed by then.
    """

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._jobs: deque[tuple[Question, int]] = deque(maxlen=BACKLOG)
        self._running = False
        self._asked_at: float | None = None

    def send(self, question: Question, index: int) -> None:
        """Send a call when those before it are done; the question gets the reply, or `Failed`, as that of ``index``."""
        if self._pid != os.getpid():
            self._begin()  # the thread has stayed in the process that we were forked from
        with self._changed:
            self._jobs.append((question, index))
            self._changed.notify()
            if not self._running:
                self._running = True
                threading.Thread(target=self._work, name="celery_throttle-node", daemon=True).start()

    def silent_for(self) -> float:
        """Return how many seconds the server has been owing a reply."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None or self._pid != os.getpid() else time.monotonic() - asked_at

    def _work(self) -> None:
        while job := self._next():
            question, index = job
            if not question.withdrawn:
                self._asked_at = time.monotonic()
                reply = self._carry_out(question)
                self._asked_at = None
                question.reply(index, reply)

    def _carry_out(self, question: Question) -> object:
        while True:
            try:
                return execute(self._client, question.call)
            except (RedisConnectionError, RedisTimeoutError) as error:
                if time.monotonic() >= question.insist_until:
                    return Failed(error)
                time.sleep(AGAIN)
            except Exception as error:  # noqa: BLE001 - one server that fails must not stop the others
                return Failed(error)

    def _next(self) -> tuple[Question, int] | None:
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._jobs), _IDLE):
                self._running = False
                return None
            return self._jobs.popleft()


def ask(nodes: Sequence[Node], call: Call, patience: float) -> Question:
    """Ask all servers at the same time.

    Args:
        nodes: whom to ask.
        call: what.
        patience: a server that has owed an earlier reply for longer than so many seconds counts as failed at once.
    """
    question = Question(call, len(nodes), 0.0)
    for index, node in enumerate(nodes):
        if node.silent_for() > patience:
            question.reply(index, Failed(TimeoutError("does not answer")))
        else:
            node.send(question, index)
    return question


def tell(nodes: Sequence[Node], call: Call, insist: float) -> Question:
    """Send a call to all servers, for so many seconds also to those out of reach; what they reply may be waited for."""
    question = Question(call, len(nodes), time.monotonic() + insist)
    for index, node in enumerate(nodes):
        node.send(question, index)
    return question
