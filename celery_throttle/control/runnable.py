"""Count the runnable tasks of each queue (those that could run now with enough workers), to scale workers by.

Tasks that a limit holds back are not runnable, so they need no machine. The lines of limits that are full, stopped or
not due are not read, because no task in them can start. The other reads are bounded.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_throttle.control.lines import partly
from celery_throttle.control.play import Play
from celery_throttle.control.queues import Depth, configured, consumed, depths, named, no_such_queue
from celery_throttle.control.reader import MOST, readers
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.naming import is_outside
from celery_throttle.errors import ConfigurationError
from celery_throttle.store.standing import refusals

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from celery_throttle.control.reader import Reader
    from celery_throttle.store.holders import Holder
    from celery_throttle.store.limit_status import LimitStatus
    from celery_throttle.store.parked_tasks import Waiter

__all__ = ["GroupWork", "Runnable", "UnknownQueue", "queue_work", "runnable", "work_of"]

#: The most lines, or limits with the lines of their keys, that are read of each group, each with one call.
_MOST_LINES = 100
#: If no more tasks than these wait for permits, one call reads all lines, and the tasks that only wait for a slot.
_FEW = 100
#: The least number of tasks to read from a line that is not read to its end.
_LEAST = 10


class UnknownQueue(ConfigurationError):
    """There is no such queue."""


@dataclass(frozen=True)
class Runnable:
    """The work of a queue.

    Attributes:
        queue: the name of the queue.
        messages: the messages that wait in the broker; None if the broker does not report them.
        running: the throttled tasks that hold permits or an identity lock; the store does not have other tasks.
        ready: the parked tasks that could start with the permits that are free now.
        runnable: the sum of these; None if the broker does not report its messages.
        known: False if the existence of the queue is not known to the broker, the app, the workers and the store.
        at_least: whether there may be more, because not all limits, keys, holders and lines were read.
    """

    queue: str
    messages: int | None
    running: int
    ready: int
    runnable: int | None
    known: bool = field(default=True, repr=False)
    at_least: bool = False

    def __str__(self) -> str:
        if not self.known:
            return f"{self.queue}: not known, and the broker does not report whether there is such a queue"
        if self.messages is None:
            return (
                f"{self.queue}: not known, the broker does not report its messages; {self.running} running, "
                f"{self.ready} ready"
            )
        least = "at least " if self.at_least else ""
        return (
            f"{self.queue}: {least}{self.runnable} runnable, {self.messages} in the broker, {self.running} running, "
            f"{self.ready} ready"
        )


@dataclass(frozen=True)
class GroupWork:
    """The running and ready tasks of a group by queue; ``cut``: there may be more, because not everything was read."""

    running: Counter[str] = field(default_factory=Counter)
    ready: Counter[str] = field(default_factory=Counter)
    cut: bool = False


def runnable(app: Any, queues: Iterable[str] = ()) -> tuple[Runnable, ...]:
    """Return the work of these queues (without names: of all known ones); `UnknownQueue` if one does not exist."""
    app.finalize(auto=True)
    wanted = set(queues)
    works = [work_of(each, each.status(MOST), each.holders(None, MOST)) for each in readers(app)]
    found, errors = queue_work(app, works, wanted, only=bool(wanted))
    if errors:
        raise UnknownQueue(" ".join(errors))
    return found


def work_of(reader: Reader, statuses: Sequence[LimitStatus], holders: Sequence[Holder]) -> GroupWork:
    """Return the running and ready tasks of a group, by a simulation of the gate.

    Holders of lost workers count as running, because a worker has to reclaim their permits.
    """
    running = Counter(
        each.queue for each in holders if each.queue and not is_outside(each.queue) and reader.is_ours(each.broker)
    )
    asked = _asked(statuses)
    waiters: list[Waiter] = []
    read_partly: set[Bucket] = set()
    for each in asked[:_MOST_LINES]:
        found = reader.waiters(each.bucket, each.most)
        waiters += found
        read_partly |= {one.line for one in found} if len(found) >= each.most and not each.whole else set()
    stands = {each.bucket: each for each in statuses}
    missing = {need.bucket for each in waiters for need in each.needs} - stands.keys()
    stands |= {each.bucket: each for each in reader.stand(sorted(each.text for each in missing))}
    play = Play(stands, {}, set())
    play.run(waiters)
    ready: Counter[str] = Counter()
    for queue, count in play.starts.items():
        if not is_outside(queue.name) and reader.is_ours(queue.broker):
            ready[queue.name] += count
    page_is_full = bool(partly(statuses, MOST)) or len(holders) >= MOST
    return GroupWork(running, ready, page_is_full or len(asked) > _MOST_LINES or bool(read_partly & play.emptied))


def queue_work(
    app: Any, works: Iterable[GroupWork], queues: Iterable[str] = (), *, only: bool = False
) -> tuple[tuple[Runnable, ...], list[str]]:
    """Return the work of the app's queues and of the store's queues, and an error for each queue that does not exist.

    ``queues``: more queues, which may not exist. ``only``: whether to return only these.
    """
    running: Counter[str] = sum((each.running for each in works), Counter())
    ready: Counter[str] = sum((each.ready for each in works), Counter())
    cut = any(each.cut for each in works)
    known = {*named(app), *running, *ready}
    found = depths(app, sorted({*queues} if only else {*queues, *known}), known)
    doubtful = {queue for queue, depth in found.items() if queue not in known and not depth.exists}
    if doubtful:
        known |= configured(app) | {queue for reader in readers(app) for queue in reader.parked_by_queue()[0]}
        doubtful -= known
    consumes = consumed(app) if doubtful else None
    doubtful -= consumes or set()
    errors = []
    for queue in sorted(doubtful):
        if found[queue].exists is False:
            del found[queue]
            everything = {*known, *(consumes or ()), *found}
            errors.append(no_such_queue(queue, everything, workers_answered=consumes is not None))
        else:  # kombu returns 0 messages for any queue
            found[queue] = Depth()
    return tuple(
        Runnable(
            queue,
            depth.messages,
            running[queue],
            ready[queue],
            None if depth.messages is None else depth.messages + running[queue] + ready[queue],
            known=queue not in doubtful,
            at_least=cut,
        )
        for queue, depth in found.items()
    ), errors


class _Asked(NamedTuple):
    """A line to read: the number of tasks, and whether these are all; of a limit with the lines of its keys.

    Without a bucket, all lines and the tasks that only wait for a slot.
    """

    bucket: Bucket | None
    most: int
    whole: bool


def _asked(statuses: Iterable[LimitStatus]) -> list[_Asked]:
    """Return the lines to read, `MOST` tasks in all: the shortest ones to their ends, and a share of the others."""
    waiting: Counter[str] = Counter()
    begin: dict[str, list[LimitStatus]] = {}
    for each in statuses:
        waiting[each.name] += each.parked
        if each.parked and _is_open(each):
            begin.setdefault(each.name, []).append(each)
    if waiting.total() <= _FEW:
        return [_Asked(None, 2 * _FEW, whole=False)]
    left, asked, others = MOST, [], []
    for name in sorted(begin, key=lambda each: (waiting[each], each)):
        if waiting[name] <= left:
            asked.append(_Asked(Bucket(name), waiting[name], whole=True))
            left -= waiting[name]
        else:
            others += begin[name]
    share = max(left // max(len(others), 1), _LEAST)
    others.sort(key=lambda each: -each.parked)
    return asked + [_Asked(each.bucket, min(share, each.parked), each.parked <= share) for each in others]


def _is_open(status: LimitStatus) -> bool:
    """Return whether the first task in its line could start; a disabled limit has no rate and always has room."""
    return all(each.kind == "barred" for each in refusals(status))
