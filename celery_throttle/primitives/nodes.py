"""Several independent servers, asked at the same time: none of them can delay the others or the caller."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_throttle.store.scripts import execute

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis import Redis

    from celery_throttle.store.scripts import Call

__all__ = ["AGAIN", "BACKLOG", "Failed", "Node", "Question", "ask"]

#: Seconds after which the thread of a node that nobody asks anything ends.
_IDLE = 10.0
#: Calls that may pile up for a node that does not answer; then the oldest are dropped, whose leases end soonest.
BACKLOG = 1000
#: Seconds between two attempts to reach a server that is owed a release.
AGAIN = 0.1


@dataclass(frozen=True)
class Failed:
    """What stands in for the reply of a server that gave none."""

    error: Exception


@dataclass(eq=False)
class Question:
    """One call to several servers, and what they have replied so far; None: nothing yet."""

    call: Call
    replies: list[object]
    changed: threading.Condition = field(default_factory=threading.Condition)
    withdrawn: bool = False

    def reply(self, index: int, reply: object) -> None:
        """Note what a server replied."""
        with self.changed:
            self.replies[index] = reply
            self.changed.notify_all()

    def wait(self, timeout: float, enough: Callable[[Sequence[object]], bool]) -> list[object]:
        """Wait until the replies are enough, at most ``timeout`` seconds; return those that are there."""
        with self.changed:
            self.changed.wait_for(lambda: enough(self.replies), timeout)
            return list(self.replies)


class Job(NamedTuple):
    """A question to one server; until then it is asked again if the connection fails."""

    question: Question
    reply: Callable[[object], None]
    insist_until: float


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
        self._jobs: deque[Job] = deque(maxlen=BACKLOG)
        self._running = False
        self._asked_at: float | None = None

    def send(self, job: Job) -> None:
        """Send a call when those before it are done; its ``reply`` gets the reply, or `Failed`."""
        if self._pid != os.getpid():
            self._begin()  # the thread has stayed in the process that we were forked from
        with self._changed:
            self._jobs.append(job)
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
            if not job.question.withdrawn:
                self._asked_at = time.monotonic()
                reply = self._carry_out(job)
                self._asked_at = None
                job.reply(reply)

    def _next(self) -> Job | None:
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._jobs), _IDLE):
                self._running = False
                return None
            return self._jobs.popleft()

    def _carry_out(self, job: Job) -> object:
        while True:
            try:
                return execute(self._client, job.question.call)
            except (RedisConnectionError, RedisTimeoutError) as error:
                if time.monotonic() >= job.insist_until:
                    return Failed(error)
                time.sleep(AGAIN)
            except Exception as error:  # noqa: BLE001 - one server that fails must not stop the others
                return Failed(error)


def ask(
    nodes: Sequence[Node],
    call: Call,
    *,
    timeout: float,
    enough: Callable[[Sequence[object]], bool],
    insist: float = 0.0,
) -> tuple[Question, list[object]]:
    """Ask all servers at the same time.

    Args:
        nodes: whom to ask.
        call: what.
        timeout: how many seconds to wait for replies.
        enough: given the replies so far, whether the rest does not matter any more.
        insist: for how many seconds to go on asking a server that is out of reach, in its thread. Without it, a server
            that has not replied to an earlier call for longer than ``timeout`` counts as failed at once.

    Returns:
        The question, which may be withdrawn from the servers that it has not been sent to yet, and for each server its
        reply, `Failed`, or None.
    """
    question = Question(call, [None] * len(nodes))
    insist_until = time.monotonic() + insist
    for index, node in enumerate(nodes):
        if not insist and node.silent_for() > timeout:
            question.reply(index, Failed(TimeoutError("does not answer")))
        else:
            node.send(Job(question, partial(question.reply, index), insist_until))
    return question, question.wait(timeout, enough)
