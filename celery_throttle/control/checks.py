"""The checks, each with what it looks at: ``report`` makes those about now, ``doctor`` those about the set-up.

Each finding comes from one fixed rule. A finding is an alarm if work is lost, or waits longer than the patience for a
reason that an operator can end.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_throttle.control.causes import causes
from celery_throttle.control.declarations import differing_declarations
from celery_throttle.control.findings import Commands, Finding, in_order, waiting
from celery_throttle.control.leases import running_twice, silent_workers
from celery_throttle.control.left_locks import left_locks
from celery_throttle.control.lines import Look
from celery_throttle.control.queues import NO_ANSWER, consumed
from celery_throttle.control.reader import MOST, MOST_LANES, readers
from celery_throttle.control.server import FULL, UNWRITABLE, StoreFacts, examine
from celery_throttle.core.wording import at, counted, one_line, shortened, span
from celery_throttle.errors import StoreUnavailable
from celery_throttle.settings import settings_of
from celery_throttle.store.unreadable import reason_of
from celery_throttle.tasks.remarks import remarks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from celery_throttle.store.parked_tasks import ParkedInQueue
    from celery_throttle.store.workers import Service

__all__ = ["CHECKS", "Check", "Checked", "Diagnosis", "Report", "diagnose", "report"]

#: Seconds after which the first values of a report may be outdated.
_STALE = 15.0


class Check(NamedTuple):
    """A check: what it ``looks_at`` in words, and what ``finds`` the problems.

    ``now``: whether it is about now, and so a part of ``report``; ``set_up``: about the set-up, a part of ``doctor``.
    """

    looks_at: str
    finds: Callable[[Checked], Iterable[Finding]]
    now: bool = True
    set_up: bool = False


class Checked:
    """What is checked: an app with its servers and its groups of limits.

    ``patience``: how long a task may wait before its wait is an alarm. ``unchecked``: a sentence for each part that
    could not be checked.
    """

    def __init__(self, app: Any, commands: Commands, patience: timedelta) -> None:
        app.finalize(auto=True)
        self.app, self.commands, self.patience = app, commands, patience
        self.unchecked: list[str] = []
        self.groups = [Look(app, each, commands, patience, self.unchecked) for each in readers(app)]

    @property
    def at(self) -> datetime:
        """The store's time at the beginning."""
        read = (each.clock[0] for each in self.groups if "clock" in vars(each))
        return next(read, datetime.now(timezone.utc))

    @cached_property
    def servers(self) -> list[tuple[StoreFacts, list[str]]]:
        """The facts of each server that has limits of the app, with a sentence for each problem of the server."""
        settings = settings_of(self.app)
        groups = [each.reader.group for each in self.groups]
        some = groups if "+cluster://" in settings.url else groups[:1]
        return [examine(settings.url, settings.keys(group), settings.durability) for group in some]

    def leave_out(self, facts: StoreFacts) -> None:
        """Make no checks of the groups of a server: leases end there because no worker can renew them."""
        for each in self.groups:
            if len(self.servers) == 1 or each.reader.group == facts.group:
                each.leave_out()

    @property
    def problems(self) -> Iterator[tuple[StoreFacts, str]]:
        """The problems of the servers, each with the facts of its server."""
        return ((facts, problem) for facts, problems in self.servers for problem in problems)

    def findings(self, checks: Iterable[Check]) -> tuple[Finding, ...]:
        """Return what these checks find, in the order of the kinds."""
        found = dict.fromkeys(each for check in checks for each in check.finds(self))
        # A queue that no worker consumes is the reason why no worker takes its tasks.
        dead = {each.queue for each in found if each.kind == "no-worker"}
        return in_order(each for each in found if each.kind != "no-slot" or each.queue not in dead)


# -- the store ---------------------------------------------------------------------------------------------------------


def _useless(checked: Checked) -> Iterator[Finding]:
    """Yield the problems of servers that let no task start or be parked."""
    for facts, problem in checked.problems:
        if facts.disk_error:
            checked.leave_out(facts)
        if _is_useless(facts, problem):
            why = _refused(checked) if problem.startswith((FULL, UNWRITABLE)) else ""
            yield Finding("store", True, _sentence(problem), why)


def _unsuitable(checked: Checked) -> Iterator[Finding]:
    """Yield the other problems of servers."""
    unknown = (facts.unknown for facts, _ in checked.servers if facts.unknown)
    checked.unchecked.extend(f"The store does not report: {', '.join(each)}." for each in unknown)
    others = (problem for facts, problem in checked.problems if not _is_useless(facts, problem))
    return (Finding("set-up", False, _sentence(each)) for each in others)


def _is_useless(facts: StoreFacts, problem: str) -> bool:
    return facts.role not in (None, "master") or bool(facts.missing_rights) or problem.startswith((FULL, UNWRITABLE))


def _sentence(problem: str) -> str:
    return f"{problem[0].upper()}{problem[1:]}."


def _refused(checked: Checked) -> str:
    """Return a sentence: how often workers have lost the store, or the store refused a call."""
    try:
        count = sum(each.reader.store_errors() for each in checked.groups)
    except StoreUnavailable:
        return ""
    return f"Workers have counted {counted(count, 'store error')} so far."


def _options(checked: Checked) -> Iterator[Finding]:
    return (Finding("set-up", False, each) for each in remarks(checked.app))


# -- each group of limits ----------------------------------------------------------------------------------------------


def _of_groups(finds: Callable[[Look], Iterable[Finding]]) -> Callable[[Checked], Iterator[Finding]]:
    """Return a check of each group, until the store refuses to answer about the group."""

    def check(checked: Checked) -> Iterator[Finding]:
        for look in checked.groups:
            try:
                yield from () if look.left_out else finds(look)
            except StoreUnavailable as error:
                look.leave_out()
                yield Finding("store", True, "Holders and parked tasks cannot be read.", str(error))

    return check


def _lost_data(look: Look) -> Iterator[Finding]:
    """Yield that the store has lost its data; then the limits cannot be checked yet."""
    _, settling = look.clock
    if settling:
        look.leave_out()
        yield Finding(
            "settling",
            True,
            f"The store has lost its data: nothing starts for another {span(settling)}.",
            "The workers put their holders back, so the limits cannot be checked yet.",
        )


def _records(look: Look) -> Iterator[Finding]:
    found = sorted(look.reader.set_aside(MOST), key=lambda each: (each.since, each.task_id, each.key, each.field))
    aside = [each for each in found if each.task_id]
    dropped = [each for each in found if not each.task_id]
    if dropped:
        named = shortened([f"{each.key}[{each.field}]" for each in dropped])
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
            f"{counted(len(tasks), 'task')} cannot start: {shortened(tasks)}.",
            f"{reason_of(why, 'They were', 'Their records in the store are')}, the first since {at(since)}.",
            ("ThrottleControl(app).set_aside() has the records; their messages are kept for a week.",),
            since=since,
        )


def _unconsumed(checked: Checked) -> Iterator[Finding]:
    """Yield the queues of parked tasks that no worker consumes."""
    queues: dict[str, ParkedInQueue] = {}
    yield from _of_groups(partial(_add_queues, queues))(checked)
    taken = consumed(checked.app) if queues else set()
    if taken is None:
        checked.unchecked.append(NO_ANSWER)
        return
    for queue in sorted(queues.keys() - taken):
        _, count, since = queues[queue]
        yield Finding(
            "no-worker",
            since is not None and checked.at - since > checked.patience,
            f"No worker that answers consumes queue {queue!r}: {waiting(count, since, checked.at)}.",
            "Workers were asked by remote control.",
            (checked.commands.worker(queue),),
            queue=queue,
            waits=count,
            since=since,
        )


def _add_queues(known: dict[str, ParkedInQueue], look: Look) -> Iterable[Finding]:
    """Add the parked tasks of each queue of a group."""
    found, cut = look.reader.parked_by_queue()
    if cut:
        look.unchecked.append(f"The queues of the parked tasks behind the first {MOST_LANES} lanes.")
    known |= {queue: parked.and_also(known.get(queue)) for queue, parked in found.items()}
    return ()


#: The checks, in their order.
CHECKS = (
    Check("the server: whether tasks can start and be parked", _useless, set_up=True),
    Check("the server: release, durability, eviction, latency, clock", _unsuitable, now=False, set_up=True),
    Check("the options of tasks, and the settings", _options, now=False, set_up=True),
    Check("the data of the store: whether the store has just lost it", _of_groups(_lost_data)),
    Check("the records of tasks: whether they can be read", _of_groups(_records), set_up=True),
    Check("the limits that workers and this code declare", _of_groups(differing_declarations), set_up=True),
    Check("changes at run time, and the first task in each line", _of_groups(causes)),
    Check("the leases of workers, and the duplicates that wait for one", _of_groups(silent_workers)),
    Check("runs of singletons whose leases have ended", _of_groups(running_twice)),
    Check("identity locks that wait for a run: whether their tasks have ended", _of_groups(left_locks)),
    Check("the queues of parked tasks", _unconsumed),
)


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
    """Check the store, the limits and the lines, and return the findings."""
    checked, began = Checked(app, commands, patience), time.monotonic()
    found = checked.findings(each for each in CHECKS if each.now)
    took = time.monotonic() - began
    if took > _STALE:
        checked.unchecked.append(f"Whether all of this is so still: reading it took {span(took)}.")
    alarms, others = (tuple(each for each in found if each.alarm is alarm) for alarm in (True, False))
    return Report(checked.at, round(took, 3), alarms, others, tuple(dict.fromkeys(checked.unchecked)))


@dataclass(frozen=True)
class Diagnosis:
    """The result of the checks.

    ``stores``: the checked servers: one for all groups of limits, in a cluster one for each group. ``findings``: the
    worst first. ``unchecked``: a sentence for each part that could not be checked. ``services``: the brokers whose
    workers use the store, with the app's own.
    """

    stores: tuple[StoreFacts, ...]
    findings: tuple[Finding, ...]
    unchecked: tuple[str, ...]
    services: tuple[Service, ...] = ()


def diagnose(app: Any, commands: Commands | None = None) -> Diagnosis:
    """Check the store, the options of the app's tasks, the declarations and the records."""
    checked = Checked(app, commands or Commands(), timedelta())
    found = checked.findings(each for each in CHECKS if each.set_up)
    services: dict[str, Service] = {}
    for look in checked.groups:
        with suppress(StoreUnavailable):  # a finding, since the store refuses the records too
            services |= {each.code: each for each in look.reader.services()}
    stores = tuple(facts for facts, _ in checked.servers)
    return Diagnosis(stores, found, tuple(dict.fromkeys(checked.unchecked)), tuple(services.values()))
