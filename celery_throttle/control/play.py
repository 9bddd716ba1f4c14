"""Simulate the gate on the data of the store: which parked tasks start, and which limits refuse the others.

Tasks start in order. A line stops at the first task that its own limit refuses. A task that another limit refuses goes
to the line of that limit.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from celery_throttle.core.buckets import Bucket
from celery_throttle.core.wording import counted, listed, one_line
from celery_throttle.store.standing import refusals

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_throttle.core.queues import BrokerQueue
    from celery_throttle.store.limit_status import LimitStatus
    from celery_throttle.store.parked_tasks import Waiter

__all__ = ["Bound", "Play"]


@dataclass(frozen=True)
class Bound:
    """A reason why tasks would wait.

    Attributes:
        why: the reason, in words.
        tasks: the number of tasks that would wait, with those behind them in line.
        limit: the limit that refuses them, None if no limit does.
        key: the value of the limit's key.
        queue: the queue without a worker that answers, None for another reason.
        kind: ``"paused"``, ``"held-back"``, ``"undeclared"``, ``"full"``, ``"barred"`` (another task goes first),
            ``"rate"``, ``"line"`` (others come first), or ``"no-worker"``.
    """

    why: str
    tasks: int
    limit: str | None = None
    key: str | None = None
    queue: str | None = None
    kind: str = ""

    def __str__(self) -> str:
        return f"{counted(self.tasks, 'task')} would wait on: {one_line(self.why)}."


class Play:
    """Simulate the starts of parked tasks, one after the other.

    ``stands``: the status of the limits at the beginning. ``firsts``: the place of the first task in the lines of other
    limits. ``dead``: the queues that no worker consumes.
    """

    def __init__(self, stands: dict[Bucket, LimitStatus], firsts: dict[Bucket, float], dead: set[BrokerQueue]) -> None:
        self._stands, self._firsts, self._dead = stands, firsts, dead
        self._started: Counter[Bucket] = Counter()
        self.at_most = False
        #: number of tasks that start, by queue
        self.starts: Counter[BrokerQueue] = Counter()
        #: number of tasks that wait, by reason; `Bound.tasks` is 0 in each
        self.bounds: Counter[Bound] = Counter()
        #: lines from which all tasks have gone
        self.emptied: set[Bucket] = set()

    def run(self, waiters: Iterable[Waiter]) -> None:
        """Go through the lines; the next one is always the line whose first task is the oldest."""
        lines: dict[Bucket, deque[Waiter]] = {}
        gone: dict[object, Bound] = {}  # the tasks of a lane go to another line together
        for each in waiters:
            lines.setdefault(each.line, deque()).append(each)
        turns = [(line[0].ticket, str(bucket), bucket) for bucket, line in lines.items()]
        heapify(turns)
        while turns:
            _, name, bucket = heappop(turns)
            line = lines[bucket]
            lane = (line[0].needs, line[0].queue)
            bound = gone.get(lane) or self._bound(line[0])
            if bound and (bound.limit, bound.key) == tuple(bucket):
                self.bounds[bound] += len(line)
                continue
            first = line.popleft()
            if line:
                heappush(turns, (line[0].ticket, name, bucket))
            else:
                self.emptied.add(bucket)
            if bound:
                self.bounds[bound] += 1
                gone[lane] = bound
                self._goes_to(first, Bucket(str(bound.limit), bound.key))
            else:
                self._start(first)

    def _goes_to(self, waiter: Waiter, bucket: Bucket) -> None:
        """Move a task to the line of another limit; a task of a queue without workers goes to none."""
        if waiter.queue not in self._dead:
            place = waiter.place(bucket)
            self._firsts[bucket] = min(self._firsts.get(bucket, place), place)

    def _start(self, waiter: Waiter) -> None:
        self.starts[waiter.queue] += 1
        for need in waiter.needs:
            status = self._stands[need.bucket]
            self._stands[need.bucket] = replace(status, held=status.held + need.permits)
            self._started[need.bucket] += 1
            # The rest of a burst is not known, nor the permits that are free on each site.
            paced = bool(status.rates_in_force and self._started[need.bucket] > 1)
            self.at_most = self.at_most or paced or need.bucket.is_open

    def _bound(self, waiter: Waiter) -> Bound | None:
        """Return the reason why a task does not start, None if it starts."""
        queue = waiter.queue.name
        if waiter.queue in self._dead:
            return Bound(f"no worker that answers consumes queue {queue!r}", 0, queue=queue, kind="no-worker")
        # A task that its own limit refuses keeps its place there, so that limit is checked first.
        needs = sorted(waiter.needs, key=lambda each: each.bucket != waiter.line)
        found = (self._refusal(self._stands[need.bucket], need.permits, waiter) for need in needs)
        return next(filter(None, found), None)

    def _refusal(self, status: LimitStatus, cost: int, waiter: Waiter) -> Bound | None:
        bucket, place = status.bucket, waiter.place(status.bucket)
        refusal = next(refusals(status, cost, waiter.task, waiter.ticket), None)
        waits_in_line = not status.disabled and self._firsts.get(bucket, place) < place
        if waits_in_line and (refusal is None or refusal.kind == "rate"):
            return Bound(f"others come first in the line of limit {bucket}", 0, *bucket, kind="line")
        if refusal and not (refusal.kind == "full" and bucket.is_open):
            return Bound(refusal.clause, 0, *bucket, kind=refusal.kind)
        bursts = [each.burst for each in status.rates_in_force]
        if bursts and self._started[bucket] >= min(bursts):
            rates = listed([each.rate for each in status.rates_in_force])
            return Bound(f"the rate of limit {bucket} ({rates}) allows no more at once", 0, *bucket, kind="rate")
        return None
