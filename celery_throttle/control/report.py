"""Report one verdict: the problems, their reasons and the next steps.

The same state gives the same verdict, in the same order: each finding comes from one fixed rule, and rules do not weigh
each other. A finding is an alarm if work is lost, or waits longer than ``patience`` for a reason that an operator can
end. All other findings are remarks. The numbers below bound the cost of a report for any store.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from celery_throttle.control.causes import Look, causes
from celery_throttle.control.declarations import declared_differently
from celery_throttle.control.diagnosis import declared_otherwise, examined, readers
from celery_throttle.control.findings import Commands, Finding, in_order, waiting
from celery_throttle.control.lines import first_lines
from celery_throttle.control.lost_runs import running_twice
from celery_throttle.control.queues import NO_ANSWER, consumed
from celery_throttle.control.reader import MOST, MOST_LANES, Reader, partly
from celery_throttle.control.server import FULL
from celery_throttle.control.silent import silent_workers
from celery_throttle.core.wording import at, counted, one_line, shortened, span
from celery_throttle.errors import StoreUnavailable
from celery_throttle.tasks.remarks import remarks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.store.parked_tasks import ParkedInQueue

__all__ = ["Report", "report"]

#: The most lines of each group of limits that are checked, each with a call.
_MOST_LINES = 50
#: Seconds after which the first values of a report may be outdated.
_STALE = 15.0
_NAMED = 3


@dataclass(frozen=True)
class Report:
    """The state of the store, the limits and the lines, in one verdict.

    Attributes:
        at: the store's time at the beginning.
        took: seconds from the first to the last read.
        alarms: the findings that need an operator, the worst first.
        remarks: the other findings.
        unchecked: a sentence for each part that could not be checked.
    """

    at: datetime
    took: float
    alarms: tuple[Finding, ...]
    remarks: tuple[Finding, ...]
    unchecked: tuple[str, ...]

    @property
    def summary(self) -> str:
        """The verdict in a line: "nothing needs attention" only without findings and with everything checked."""
        if not (self.alarms or self.remarks or self.unchecked):
            return "nothing needs attention"
        none = "no alarm in what was looked at" if self.unchecked else "no alarm"
        alarms = counted(len(self.alarms), "alarm") if self.alarms else none
        remarks = f", {counted(len(self.remarks), 'remark')}" if self.remarks else ""
        return f"{alarms}{remarks}" + (", not everything was looked at" if self.unchecked else "")

    def __str__(self) -> str:
        lines = [f"{at(self.at)}: {self.summary}."]
        return "\n".join([*lines, *map(str, self.alarms + self.remarks), *(f"? {each}" for each in self.unchecked)])


def report(app: Any, commands: Commands, patience: timedelta) -> Report:
    """Check the store, the limits and the lines, and return the findings.

    Raises:
        ConfigurationError: a setting cannot work.
        StoreUnavailable: the store does not answer, or denies access.
    """
    app.finalize(auto=True)
    began, now = time.monotonic(), None
    found: list[Finding] = []
    unchecked: list[str] = []
    queues: dict[str, ParkedInQueue] = {}
    found += _of_servers(app)
    for reader in readers(app):
        try:
            read_at, settling = reader.clock()
            now = now or read_at
            if settling:
                found.append(_settling(settling))
            else:
                found += _of_group(app, reader, read_at, patience, commands, unchecked)
                queues |= _queues(reader, queues, unchecked)
        except StoreUnavailable as error:
            found.append(Finding("store", True, "Holders and parked tasks cannot be read.", str(error)))
    at_last = now or datetime.now(timezone.utc)
    found += _unconsumed(app, queues, at_last, patience, commands, unchecked)
    took = time.monotonic() - began
    if took > _STALE:
        unchecked.append(f"Whether all of this is so still: reading it took {span(took)}.")
    ordered = in_order(_once(found))
    alarms, others = (tuple(each for each in ordered if each.alarm is alarm) for alarm in (True, False))
    return Report(at_last, round(took, 3), alarms, others, tuple(dict.fromkeys(unchecked)))


def _of_servers(app: Any) -> Iterator[Finding]:
    """Yield the problems of the servers and of the options of tasks: an alarm if no task can start."""
    for facts, found in examined(app):
        useless = facts.role not in (None, "master") or bool(facts.missing_rights)
        for problem in found:
            full = problem.startswith(FULL)
            kind = "store" if useless or full else "set-up"
            why = _refused(app) if full else ""
            yield Finding(kind, useless or full, f"{problem[0].upper()}{problem[1:]}.", why)
    for remark in remarks(app):
        yield Finding("set-up", False, remark)


def _refused(app: Any) -> str:
    """Return a sentence: how often workers have lost the store, or the store refused a call."""
    try:
        count = sum(each.store_errors() for each in readers(app))
    except StoreUnavailable:
        return ""
    return f"Workers have counted {counted(count, 'store error')} so far."


def _settling(seconds: float) -> Finding:
    return Finding(
        "settling",
        True,
        f"The store has lost its data: nothing starts for another {span(seconds)}.",
        "The workers put their holders back, so the limits cannot be checked yet.",
    )


def _of_group(
    app: Any, reader: Reader, now: datetime, patience: timedelta, commands: Commands, unchecked: list[str]
) -> Iterator[Finding]:
    statuses = reader.status(MOST, ("limits", "overrides", "waiting", "used"))
    lines, left = first_lines(reader, statuses, _MOST_LINES)
    not_all = partly(statuses, MOST)
    for name, count in not_all.items():
        unchecked.append(f"{counted(count, 'key')} of limit {name}; keys with changes come first.")
    if left:
        unchecked.append(
            f"{left} of {left + len(lines)} lines: that of the longest wait of each limit comes first, then those of "
            "stopped keys, then of each limit in turn those where most wait."
        )
    holders = reader.holders(None, MOST)
    if len(holders) >= MOST:
        unchecked.append(f"More holders than {MOST}.")
    yield from causes(Look(reader, now, patience, statuses, lines, holders, commands, frozenset(not_all)))
    yield from silent_workers(reader, holders, commands)
    yield from running_twice(reader.lost_runs(), commands)
    yield from _set_aside(reader)
    differing = list(declared_differently(reader, holders))
    yield from differing
    named = {each.limit for each in differing}
    for name, sentence in declared_otherwise(app, reader):
        if name not in named:
            yield Finding("declared", False, f"{sentence}.", limit=name)


def _set_aside(reader: Reader) -> Iterator[Finding]:
    found = sorted(reader.set_aside(MOST), key=lambda each: (each.since, each.task_id, each.key, each.field))
    aside = [each for each in found if each.task_id]
    dropped = [each for each in found if not each.task_id]
    if dropped:
        named = shortened([f"{each.key}[{each.field}]" for each in dropped], _NAMED)
        yield Finding(
            "dropped",
            True,
            f"{counted(len(dropped), 'field')} of the store could not be read and {'were' if dropped[1:] else 'was'} "
            f"dropped: {one_line(named)}.",
            f"Another program or another release writes to these keys; the first since {at(dropped[0].since)}.",
            ("ThrottleControl(app).set_aside() has the former values, for a week.",),
            since=dropped[0].since,
        )
    for why in dict.fromkeys(each.why for each in aside):
        tasks = [each.task_id for each in aside if each.why == why]
        since = next(each.since for each in aside if each.why == why)
        yield Finding(
            "set-aside",
            True,
            f"{counted(len(tasks), 'task')} cannot start: {shortened(tasks, _NAMED)}.",
            f"Their records in the store are {why}, the first since {at(since)}.",
            ("ThrottleControl(app).set_aside() has the records; their messages are kept for a week.",),
            since=since,
        )


# -- queues ------------------------------------------------------------------------------------------------------------


def _queues(reader: Reader, known: dict[str, ParkedInQueue], unchecked: list[str]) -> dict[str, ParkedInQueue]:
    """Return the parked tasks of each queue, added to the ``known`` ones of that queue."""
    found, cut = reader.parked_by_queue()
    if cut:
        unchecked.append(f"The queues of the parked tasks behind the first {MOST_LANES} lanes.")
    return {queue: each.and_also(known[queue]) if queue in known else each for queue, each in found.items()}


def _unconsumed(
    app: Any,
    queues: dict[str, ParkedInQueue],
    now: datetime,
    patience: timedelta,
    commands: Commands,
    unchecked: list[str],
) -> Iterator[Finding]:
    """Yield the queues of parked tasks that no worker consumes."""
    taken = consumed(app) if queues else set()
    if taken is None:
        unchecked.append(NO_ANSWER)
        return
    for queue in sorted(queues.keys() - taken):
        count, since = queues[queue].tasks, queues[queue].since
        yield Finding(
            "no-worker",
            since is not None and now - since > patience,
            f"No worker that answers consumes queue {queue!r}: {waiting(count, since, now)}.",
            "Workers were asked by remote control.",
            (commands.worker(queue),),
            queue=queue,
            waits=count,
            since=since,
        )


def _once(found: list[Finding]) -> Iterator[Finding]:
    """Yield the findings once, without "no-slot" findings of queues that have a "no-worker" finding."""
    without = {each.queue for each in found if each.kind == "no-worker"}
    yield from (each for each in dict.fromkeys(found) if each.kind != "no-slot" or each.queue not in without)
