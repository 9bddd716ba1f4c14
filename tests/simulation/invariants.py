"""The invariants of the design, as far as they are visible from outside of the store.

The world notes exceptions as they happen: a run that may begin twice, or not at all (`Attempt.credit`,
`Attempt.excuses`, `Run.lapsed`). This module only compares.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from tests.simulation.book import Attempt, Book, Entry, Run
from tests.simulation.scene import Kind, Scene

__all__ = ["REVOKED", "Caps", "Violation", "check_begin", "check_pause", "check_told", "is_untold"]

T = TypeVar("T")

#: Why a task that was revoked need not run.
REVOKED = "revoked"


class Violation(AssertionError):
    """Something happened that must not."""


#: The longest time that a call may take which brings a worker a new rate.
_HEARD_US = 2_000_000


@dataclass
class Caps:
    """How many permits each limit has and had.

    Attributes:
        said: the numbers of each limit, each with the time from which it held.
        paces: the same of rates: so many in a second, and the burst; None: as in the code.
    """

    scene: Scene
    said: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    paces: dict[str, list[tuple[int, tuple[int, int] | None]]] = field(default_factory=dict)

    def say(self, limit: str, permits: int, now_us: int) -> None:
        self.said.setdefault(limit, []).append((now_us, permits))

    def pace(self, limit: str, pace: tuple[int, int] | None, now_us: int) -> None:
        self.paces.setdefault(limit, []).append((now_us, pace))

    def fastest(self, limit: str, since_us: int) -> tuple[int, int] | None:
        """Return the highest rate since then, and the largest burst; None if it had none for a while.

        Workers pass permits of a limit without a rate from run to run, until the reply to a call has one.
        """
        if limit not in self.scene.starts:
            since_us -= _HEARD_US
        found = [pace or self.scene.starts.get(limit) for pace in _since(self.paces.get(limit, []), None, since_us)]
        known = [pace for pace in found if pace is not None]
        return (max(count for count, _ in known), max(burst for _, burst in known)) if known == found else None

    def highest(self, bucket: str, since_us: int) -> int | None:
        """Return the highest number since then, None for a limit without one."""
        limit = bucket.partition("[")[0]
        number = self.scene.permits[limit]
        return None if number is None else max(_since(self.said.get(limit, []), number, since_us))


def _since(said: list[tuple[int, T]], usual: T, since_us: int) -> list[T]:
    """Return what has been in force since then; at the same time the order is open."""
    before = sum(at_us < since_us for at_us, _ in said)
    return [usual, *(each for _, each in said)][before:]


def check_begin(run: Run, book: Book, caps: Caps) -> None:
    """A body begins (it is in the book already)."""
    attempt, kind = run.attempt, run.entry.kind
    if len(attempt.runs) > 1 + attempt.credit:
        raise Violation(f"ran twice: {attempt} on {run.worker} (allowed: {attempt.why or 'once'})")
    if kind.guarded and not run.lapsed:
        _check_id(run, book)
        _check_caps(run, book, caps)
        _check_identity(run, book)
        if run.entry.replaced:  # it was parked when the newer was published; a holder of permits may run
            raise Violation(f"newest: {attempt} begins on {run.worker}, and a newer one has its place")
        _check_rates(run, caps, book)


def check_pause(run: Run, paused: dict[str, int]) -> None:
    """Nothing is granted under a pause. A permit that passes between tasks was granted before: see `Outbox.spare`."""
    for bucket, _ in run.buckets:
        since_us = paused.get(bucket.partition("[")[0])
        if since_us is not None and run.job.granted_us > since_us and not run.lapsed:
            raise Violation(f"paused: {run.attempt} begins on {run.worker}")


def _check_id(run: Run, book: Book) -> None:
    """Two deliveries of one task id never run at the same time (8)."""
    for other in book.running:
        if other is not run and not other.lapsed and other.entry is run.entry:
            raise Violation(f"two deliveries at once: {run.attempt} on {run.worker}, {other.attempt} on {other.worker}")


def _check_caps(run: Run, book: Book, caps: Caps) -> None:
    """Live holders are no more than the limit (1)."""
    for bucket, _ in run.buckets:
        since, used = run.job.granted_us, 0
        for other in book.running:
            for taken, cost in other.buckets if not other.lapsed else ():
                if taken == bucket:
                    used += cost
                    since = min(since, other.job.granted_us)
        most = caps.highest(bucket, since)
        # A call that costs more than there is runs alone.
        if most is not None and used > most and used != sum(cost for taken, cost in run.buckets if taken == bucket):
            raise Violation(f"cap: {used} of {most} permits of {bucket} in use as {run.attempt} begins on {run.worker}")


def _check_identity(run: Run, book: Book) -> None:
    entry, kind = run.entry, run.entry.kind
    if not kind.identity:
        return
    for other in book.running:
        if other.entry.identity == entry.identity and other is not run and not other.lapsed:
            raise Violation(f"identity: {run.attempt} begins on {run.worker} beside {other.attempt} on {other.worker}")
    for before in book.succeeded.get(entry.identity, ()):
        if kind.remember and run.job.granted_us < before.ended_us + kind.remember * 1e6 and before.heard:
            raise Violation(f"remembered: {run.attempt} begins though {before.attempt} has succeeded")


def check_told(entry: Entry, what: str, book: Book) -> None:
    """Check that a replaced task has a newer call, where the newest is the last published."""
    newer = [each for each in book.entries.values() if each.identity == entry.identity and each.number > entry.number]
    if entry.kind.newest and "replaced" in what and not newer:
        raise Violation(f"newest: {entry.attempts[0]} is replaced, and no call is newer")


def _check_rates(run: Run, caps: Caps, book: Book) -> None:
    for bucket, cost in run.buckets:
        pace = caps.fastest(bucket.partition("[")[0], run.job.granted_us - 1_000_000)
        if pace is not None:
            count, burst = pace
            starts = book.starts.setdefault(bucket, [])
            starts.append((run.job.granted_us, cost))
            # A start may be late without the next one being put off by that.
            recent = [each for at_us, each in starts if run.job.granted_us - 1_000_000 < at_us <= run.job.granted_us]
            if sum(recent) > count + max(burst, *recent):
                raise Violation(f"rate: {sum(recent)} starts of {bucket} in a second, {run.attempt} on {run.worker}")


def check_end(book: Book) -> None:
    """Everything that had to run has run; nothing waits (5, 3)."""
    missing = [attempt for attempt in book.all() if is_missing(attempt)]
    if missing:
        raise Violation("never ran (again): " + ", ".join(f"{each} {each.why or ''}".strip() for each in missing))
    if untold := [attempt for attempt in book.all() if is_untold(attempt)]:
        raise Violation("revoked, and not reported: " + ", ".join(map(str, untold)))


def is_missing(attempt: Attempt) -> bool:
    return not (attempt.done or attempt.excuses or attempt.entry.remembered or attempt.entry.succeeded)


def is_untold(attempt: Attempt) -> bool:
    """Return whether it was revoked, did not run, and no worker has reported so."""
    return set(attempt.excuses) == {REVOKED} and not attempt.runs and not attempt.entry.told


_MOST_PLACES_OFF = 8


def overtaken(
    started: Attempt,
    book: Book,
    scene: Scene,
    used: dict[str, int],
    queue_of: dict[str, str],
    waiting: set[str],
    workers: int,
) -> str | None:
    """Return the tasks that arrived long before this one, and could have had its slot (13, 14).

    This holds where every call gets through at once. A worker without a free slot has prefetched the `waiting` ones, as
    Celery does. In each of so many workers they and the parked take turns, so one of them may go first in each. Of a
    line, only the first task could have had the slot.
    """
    arrived, lines = list(book.arrived), set()
    place, queue = arrived.index(started.entry.task_id), queue_of[started.kind.name]
    for task_id in arrived[: max(place - _MOST_PLACES_OFF, 0)]:
        entry = book.entries[task_id]
        kind = entry.kind
        counts = kind.ordered and not kind.identity and queue_of[kind.name] == queue and task_id not in waiting
        if counts and not entry.runs() and task_id not in book.given and _has_room(kind, entry, scene, used):
            if (line := frozenset(kind.taken(entry.arguments))) in lines:
                continue
            lines.add(line)
            entry.overtaken += 1
            if entry.overtaken <= workers:
                continue
            return f"{entry.attempts[0]} arrived {place - arrived.index(task_id)} before {started} and has room"
    return None


def _has_room(kind: Kind, entry: Entry, scene: Scene, used: dict[str, int]) -> bool:
    for bucket, cost in kind.taken(entry.arguments):
        most = scene.permits[bucket.partition("[")[0]]
        if bucket.partition("[")[0] in scene.starts or most is None or used.get(bucket, 0) + cost > most:
            return False
    return True


def check_order(book: Book, queue_of: dict[str, str]) -> None:
    """Where nothing goes wrong, tasks start in the order in which they arrived (2, 13), nearly.

    A task that needs more than an earlier one could not start if that one could not. This holds for one queue only:
    another may have workers with fewer slots than permits. The pool takes its time to begin its jobs.
    """
    given = {task_id: number for number, task_id in enumerate(book.given)}
    firsts = [book.entries[task_id].attempts[0] for task_id in book.arrived]
    runs = [each.runs[0] for each in firsts if each.runs and each.kind.ordered]
    for place, run in enumerate(runs):
        needs, queue = _needs(run), queue_of[run.entry.kind.name]
        before = [
            other
            for other in runs[place + 1 :]
            if needs and needs <= _needs(other) and queue_of[other.entry.kind.name] == queue
            if given[other.entry.task_id] < given[run.entry.task_id]
        ]
        if len(before) > _MOST_PLACES_OFF:
            raise Violation(f"order: {len(before)} that came later were started before {run.attempt}")


def _needs(run: Run) -> set[str]:
    return {bucket for bucket, _ in run.buckets}
