"""Bodies of tasks, and a gate in front of them, so that a test decides how long they run, without sleep."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery.exceptions import WorkerTerminate

from celery_throttle.testing.messages import WITHIN

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from celery_throttle.core.buckets import Bucket

__all__ = ["Body", "Gate", "WorkerGone"]

__tracebackhide__ = True  # pytest shows the line of the test instead


@dataclass(eq=False)
class Body:
    """A body that has begun, or that a gate holds right before its begin.

    Attributes:
        task_id: the id of its task.
        name: the name of the task.
        args: its positional arguments.
        kwargs: its arguments by name.
        costs: the permits that the call takes.
        node: the name of its worker: ``w1@test``.
        began: seconds on the clock of ``time.monotonic``.
        ended: infinite while it runs.
        state: Celery's state at its end: ``SUCCESS``, ``FAILURE``, ``RETRY``, ``IGNORED``.
        outcome: the returned value, or the error.
        lost: its worker is lost.
    """

    task_id: str
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    costs: list[tuple[Bucket, int]]
    node: str
    began: float = field(default_factory=monotonic)
    ended: float = math.inf
    state: str = ""
    outcome: Any = None
    lost: bool = False

    @property
    def runs(self) -> bool:
        """Whether it runs on a worker that lives."""
        return self.ended == math.inf and not self.lost

    def end(self, state: str, outcome: Any) -> None:
        """Record its end, unless it has ended before."""
        if self.ended == math.inf:
            self.state, self.outcome, self.ended = state, outcome, monotonic()

    def lose(self) -> None:
        """Record the loss of its worker, unless it has ended before."""
        self.lost = self.lost or self.ended == math.inf


class WorkerGone(WorkerTerminate):
    """Ends a body at a gate whose worker is lost; no result is stored, as for a killed worker."""


class Gate:
    """Holds bodies right before their begin, each with its permits and its slot, until `open`.

    Args:
        names: the names of the tasks; empty: all tasks.
        failure: makes the error of a sentence.
    """

    def __init__(self, names: Collection[str], failure: Callable[[str], AssertionError]) -> None:
        self._names, self._failure, self._passes = names, failure, 0.0
        self._changed = threading.Condition()
        self._waiting: list[Body] = []

    @property
    def waiting(self) -> tuple[str, ...]:
        """The ids of the tasks at the gate, in the order in which they came."""
        return tuple(each.task_id for each in list(self._waiting))

    def open(self, count: float = math.inf) -> None:
        """Let so many bodies begin, in the order in which they came; without a number all, also those that come."""
        with self._changed:
            self._passes += count
            self._let_through()

    def wait_for(self, count: int, within: float = WITHIN) -> tuple[str, ...]:
        """Wait until so many bodies are at the gate; return their task ids.

        Raises:
            AssertionError: fewer came within these seconds.
        """
        with self._changed:
            came = self._changed.wait_for(lambda: len(self._waiting) >= count, within)
        if not came:
            raise self._failure(f"{len(self.waiting)} of {count} bodies came to the gate within {within:g} s.")
        return self.waiting

    def pass_through(self, body: Body) -> None:
        """Hold a body, in the thread of its worker, if the gate is for its task.

        Raises:
            WorkerGone: the worker was lost meanwhile.
        """
        if self._names and body.name not in self._names:
            return
        with self._changed:
            self._waiting.append(body)
            self._let_through()
            self._changed.wait_for(lambda: body.lost or body not in self._waiting)
            if body in self._waiting:
                self._waiting.remove(body)
                raise WorkerGone

    def _let_through(self) -> None:
        while self._passes > 0 and self._waiting:
            self._waiting.pop(0)
            self._passes -= 1
        self._changed.notify_all()
