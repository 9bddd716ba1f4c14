"""Why the lines of limits stand: what was said of them, what is full, what nobody takes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_throttle.control.findings import Commands, Finding, waiting
from celery_throttle.core.naming import is_outside
from celery_throttle.core.wording import at, span
from celery_throttle.store.explain import explained, in_words
from celery_throttle.store.limit_status import rates_text

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from datetime import datetime, timedelta

    from celery_throttle.control.lines import Line
    from celery_throttle.control.reader import Reader
    from celery_throttle.core.buckets import Bucket
    from celery_throttle.store.holders import Holder
    from celery_throttle.store.limit_status import LimitStatus, RateStatus, Said
    from celery_throttle.store.task_view import TaskView

__all__ = ["Look", "causes"]

#: Seconds after which a start that nobody took is no chance any more: a worker with a slot takes it in a tenth.
_AGAIN = 1.0


@dataclass(frozen=True)
class Look:
    """What was read of one group of limits.

    Attributes:
        reader: of the group.
        now: the store's time.
        patience: for how long somebody may wait before it is an alarm.
        statuses: how the limits stand, and their keys.
        lines: who is first in the lines.
        holders: who holds permits.
        commands: how commands begin.
        partly: limits of which not all keys were read.
    """

    reader: Reader
    now: datetime
    patience: timedelta
    statuses: tuple[LimitStatus, ...]
    lines: tuple[Line, ...]
    holders: tuple[Holder, ...]
    commands: Commands
    partly: Container[str] = ()

    def parked(self, scope: Bucket, rows: list[LimitStatus]) -> int:
        """Return how many tasks wait for a limit with all its keys, whichever of these were read; or for a key."""
        whole = next((each for each in self.statuses if each.bucket == scope), None)
        return whole.parked_in_all if whole else sum(each.parked for each in rows)

    def is_long(self, since: datetime | None) -> bool:
        """Whether that is longer ago than anybody should have to wait."""
        return since is not None and self.now - since > self.patience


def causes(look: Look) -> Iterator[Finding]:
    """Yield what keeps tasks waiting in the lines that were looked at, and what was said of limits."""
    for scope, said, lines, rows in _scopes(look, "paused"):
        yield _stopped(look, "paused", scope, said, lines, rows)
    for scope, said, lines, rows in _scopes(look, "held_back"):
        yield _stopped(look, "held-back", scope, said, lines, rows)
    for scope, said, _, rows in _scopes(look, "disabled"):
        yield _disabled(look, scope, said, rows)
    for scope, said, lines, rows in _scopes(look, "override"):
        yield _overridden(look, scope, said, lines, rows)
    for scope, said, lines, rows in _scopes(look, "rate_override"):
        yield _other_rate(look, scope, said, lines, rows)
    moving = [each for each in look.lines if not each.status.stopped]
    views = [(line, look.reader.explain(line.first.task_id)) for line in moving if line.first]
    waits = [(line, view) for line, view in views if view.state == "parked" and view.line]
    yield from (found for line, view in waits for found in _kept_waiting(look, line, view))
    yield from _not_taken(look, [(line, view) for line, view in waits if _can_start(line, view)])


# -- what was said at run time -----------------------------------------------------------------------------------------


def _scopes(look: Look, what: str) -> Iterator[tuple[Bucket, Said, list[Line], list[LimitStatus]]]:
    """Yield what this was said of, what was said, and the lines and the limits or keys that it is about."""
    found: dict[Bucket, tuple[Said, list[LimitStatus]]] = {}
    everything = {each.bucket: each for each in (*look.statuses, *(line.status for line in look.lines))}
    for status in everything.values():
        said: Said | None = getattr(status, what)
        if said:
            found.setdefault(status.scope(said), (said, []))[1].append(status)
    for scope, (said, rows) in found.items():
        buckets = {each.bucket for each in rows}
        yield scope, said, [each for each in look.lines if each.status.bucket in buckets], rows


def _first(lines: list[Line]) -> datetime | None:
    return min((each.since for each in lines if each.since), default=None)


def _stopped(look: Look, kind: str, scope: Bucket, said: Said, lines: list[Line], rows: list[LimitStatus]) -> Finding:
    count, since = look.parked(scope, rows), _first(lines)
    word, ends = {"paused": ("paused", "resume"), "held-back": ("held back", "release-hold")}[kind]
    return Finding(
        kind,
        look.is_long(since),
        f"Limit {scope} is {word}: {waiting(count, since, look.now)}.",
        f"{word.capitalize()} {in_words(said)}.",
        (look.commands.throttle(ends, scope),) if count else (),
        scope.name,
        scope.key,
        waits=count,
        since=since,
    )


def _disabled(look: Look, scope: Bucket, said: Said, rows: list[LimitStatus]) -> Finding:
    over = [each for each in rows if each.permits is not None and each.held > each.permits]
    most = max(over, key=lambda each: each.held, default=None)
    runs = f": {most.held} run of {most.bucket}, the code allows {most.permits}" if most else ""
    return Finding(
        "disabled",
        bool(over),
        f"Limit {scope} is not enforced{runs}.",
        f"Disabled {in_words(said)}.",
        (look.commands.throttle("enable", scope),),
        scope.name,
        scope.key,
    )


def _overridden(look: Look, scope: Bucket, said: Said, lines: list[Line], rows: list[LimitStatus]) -> Finding:
    less = any(_has_fewer(each) for each in rows)
    code = "any number" if rows[0].permits is None else str(rows[0].permits)
    full = [each for each in rows if each.full]
    return _of_override(look, scope, said, f"has {said.permits} instead of {code}", full, lines, less=less)


def _other_rate(look: Look, scope: Bucket, said: Said, lines: list[Line], rows: list[LimitStatus]) -> Finding:
    less = _pace(said.rates) < _pace(rows[0].rates)
    has = f"has the rate {rates_text(said.rates)} instead of {rates_text(rows[0].rates) or 'none'}"
    late = [each for each in rows if each.next_start_in > 0]
    return _of_override(look, scope, said, has, late, lines, less=less)


def _of_override(
    look: Look, scope: Bucket, said: Said, has: str, kept: list[LimitStatus], lines: list[Line], *, less: bool
) -> Finding:
    """Return what an override does: to the limits that it keeps waiting, and whether it allows less than the code."""
    kept = [each for each in kept if not each.stopped]
    buckets = {each.bucket for each in kept}
    count, since = sum(each.parked for each in kept), _first([each for each in lines if each.status.bucket in buckets])
    least = "at least " if scope.key is None and scope.name in look.partly else ""
    return Finding(
        "overridden",
        less and look.is_long(since),
        f"Limit {scope} {has}: {least}{waiting(count, since, look.now)}.",
        f"Overridden {in_words(said)}.",
        (look.commands.throttle("reset", scope),) if less and count else (),
        scope.name,
        scope.key,
        waits=count,
        since=since,
    )


def _pace(rates: tuple[RateStatus, ...]) -> float:
    return min((each.per_second for each in rates), default=float("inf"))


def _has_fewer(status: LimitStatus) -> bool:
    said = status.override
    return said is not None and said.permits is not None and (status.permits is None or said.permits < status.permits)


# -- what keeps the first of a line ------------------------------------------------------------------------------------


def _refusing(view: TaskView) -> LimitStatus | None:
    """Return the first of its limits that has no permits for it."""
    costs = {need.bucket: need.permits for need in view.needs}
    return next((each for each in view.limits if not each.has_room(costs.get(each.bucket, 1))), None)


def _kept_waiting(look: Look, line: Line, view: TaskView) -> Iterator[Finding]:
    if any(each.stopped for each in view.limits):  # which is told already
        return
    full, late = _refusing(view), next((each for each in view.limits if each.next_start_in > 0), None)
    waits = waiting(line.status.parked, line.since, look.now)
    long, bucket = look.is_long(line.since), line.status.bucket
    if full and not full.declared:
        what = f"No worker has declared limit {full.bucket}: {waits}."
        why = "The store does not know how many permits it has; a worker of its tasks says so when it starts."
        yield _of_line(line, "undeclared", long, what, why, (look.commands.worker(view.queue),), view.queue)
    elif full:
        yield from _full(look, line, view, full, waits)
    elif late and long:
        why = " ".join(_reasons(line, view))
        yield _of_line(line, "rate", False, f"The rate keeps the line of {bucket}: {waits}.", why)
    elif _barred(line, view) and long:
        yield _of_line(line, "barred", False, f"Limit {bucket}: {waits}.", " ".join(_reasons(line, view)))


def _full(look: Look, line: Line, view: TaskView, full: LimitStatus, waits: str) -> Iterator[Finding]:
    """Yield that a limit is full: an alarm if nothing has started on it for too long."""
    mine = [each for each in look.holders if any(need.bucket == full.bucket for need in each.needs)]
    seen = sum(need.permits for each in mine for need in each.needs if need.bucket == full.bucket)
    last = max((each.since for each in mine), default=None) if seen >= full.held else None
    long = look.is_long(line.since)
    stuck = long and look.is_long(last)
    if not long or (_has_fewer(full) and not stuck):  # that it has fewer is told by itself
        return
    why = " ".join([*_reasons(line, view), *_longest(mine)])
    more = str((full.in_force or 0) + 1)
    do = (look.commands.throttle("show", full.bucket), look.commands.throttle("set", full.bucket, more, dry_run=True))
    if stuck and last:
        ago = span((look.now - last).total_seconds())
        what = f"Limit {full.bucket} is full, and nothing has started on it for {ago}: {waits}."
        yield _of_line(line, "stuck", True, what, why, do)
    else:
        ago = f"; its last start was {span((look.now - last).total_seconds())} ago" if last else ""
        yield _of_line(line, "full", False, f"Limit {full.bucket} is full: {waits}{ago}.", why, do)


def _longest(holders: list[Holder]) -> Iterator[str]:
    if holders:
        first = min(holders, key=lambda each: (each.since, each.task_id))
        yield f"Task {first.task_id} has held longest, since {at(first.since)}, on worker {first.worker}."


def _reasons(line: Line, view: TaskView) -> tuple[str, ...]:
    return explained(line.first.task_id if line.first else "", view).reasons


def _of_line(
    line: Line, kind: str, alarm: bool, what: str, why: str, do: tuple[str, ...] = (), queue: str | None = None
) -> Finding:
    bucket = line.status.bucket
    return Finding(kind, alarm, what, why, do, bucket.name, bucket.key, queue, line.status.parked, line.since)


# -- what nobody takes -------------------------------------------------------------------------------------------------


def _barred(line: Line, view: TaskView) -> bool:
    task = line.first.task_id if line.first else ""
    return any(each.bars(task, view.ticket) for each in view.limits)


def _can_start(line: Line, view: TaskView) -> bool:
    """Whether nothing keeps the first of a line but that no worker takes it."""
    ready = all(not each.stopped and each.next_start_in <= 0 for each in view.limits)
    return ready and _refusing(view) is None and not _barred(line, view)


def _not_taken(look: Look, ready: list[tuple[Line, TaskView]]) -> Iterator[Finding]:
    """Yield the lines whose first could start, and which nobody takes; who has just become first is given a moment."""
    if not ready:
        return
    time.sleep(_AGAIN)
    for line, before in ready:
        task = line.first.task_id if line.first else ""
        view = look.reader.explain(task)
        if view.state != "parked" or view.ticket != before.ticket or not _can_start(line, view):
            continue
        waits = waiting(line.status.parked, line.since, look.now)
        what = f"Limit {line.status.bucket} has room, and nobody takes the first of its line, {task}: {waits}."
        why = " ".join(_reasons(line, view))
        do = () if is_outside(view.queue) or view.service else (look.commands.worker(view.queue),)
        yield _of_line(line, "no-slot", look.is_long(line.since), what, why, do, view.queue)
