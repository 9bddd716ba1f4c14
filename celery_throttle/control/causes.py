"""Find the causes of waits: runtime overrides, full limits, rates, and starts that no worker takes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery_throttle.control.findings import Finding
from celery_throttle.core.naming import is_outside
from celery_throttle.core.wording import at, span
from celery_throttle.store.explain import explained
from celery_throttle.store.limit_status import rates_text, starts_per_second
from celery_throttle.store.standing import in_words, refusals_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from celery_throttle.control.lines import Line, Look
    from celery_throttle.core.buckets import Bucket
    from celery_throttle.store.holders import Holder
    from celery_throttle.store.limit_status import LimitStatus, RuntimeOverride
    from celery_throttle.store.task_view import TaskView

__all__ = ["causes"]

#: Seconds after which a start that no worker took counts as not taken: a worker with a slot takes one in a tenth.
_AGAIN = 1.0
#: The command that ends a change, by its kind.
_ENDS = {"paused": "resume", "held-back": "release-hold", "disabled": "enable"}


def causes(look: Look) -> Iterator[Finding]:
    """Yield the causes of waits in the lines that were read, and the runtime overrides of limits."""
    yield from (_of_change(look, *each) for each in _changes(look))
    moving = [each for each in look.lines if not each.status.stopped]
    views = [(line, look.reader.explain(line.task)) for line in moving if line.first]
    waits = [(line, view) for line, view in views if view.state == "parked" and view.line]
    yield from (found for line, view in waits for found in _kept_waiting(look, line, view))
    yield from _not_taken(look, [(line, view) for line, view in waits if not _refusals(line, view)])


# -- changes at run time -----------------------------------------------------------------------------------------------


def _changes(look: Look) -> Iterator[tuple[str, Bucket, RuntimeOverride, list[LimitStatus]]]:
    """Yield (kind, scope, change, statuses) for each change at run time; one of permits and one of rates are two."""
    found: dict[object, tuple[str, Bucket, RuntimeOverride, list[LimitStatus]]] = {}
    everything = {each.bucket: each for each in (*look.statuses, *(line.status for line in look.lines))}
    for status in everything.values():
        for kind, change in status.changes:
            scope = status.scope(change)
            found.setdefault((kind, bool(change.rates), scope), (kind, scope, change, []))[3].append(status)
    yield from found.values()


def _of_change(look: Look, kind: str, scope: Bucket, change: RuntimeOverride, rows: list[LimitStatus]) -> Finding:
    if kind == "override":
        return _overridden(look, scope, change, rows)
    verb, state = _ENDS[kind], kind.replace("-", " ")
    why, do = f"{state.capitalize()} {in_words(change)}.", (look.commands.throttle(verb, scope),)
    if kind == "disabled":
        over = [each for each in rows if each.permits is not None and each.held > each.permits]
        most = max(over, key=lambda each: each.held, default=None)
        runs = f": {most.held} run of {most.bucket}, the code allows {most.permits}" if most else ""
        return Finding(kind, bool(over), f"Limit {scope} is not enforced{runs}.", why, do, scope.name, scope.key)
    count, since = look.parked(scope, rows), _first(look, rows)
    what = f"Limit {scope} is {state}: {look.waiting(count, since)}."
    long = look.is_long(since)
    return Finding(kind, long, what, why, do if count else (), scope.name, scope.key, waits=count, since=since)


def _overridden(look: Look, scope: Bucket, change: RuntimeOverride, rows: list[LimitStatus]) -> Finding:
    """Return the finding of an override: an alarm if it allows less than the code, and tasks wait for that."""
    if change.rates:
        less = starts_per_second(change.rates) < starts_per_second(rows[0].rates)
        has = f"has the rate {rates_text(change.rates)} instead of {rates_text(rows[0].rates) or 'none'}"
    else:
        less = any(_has_fewer(each) for each in rows)
        has = f"has {change.permits} instead of {'any number' if rows[0].permits is None else rows[0].permits}"
    kept = [each for each in rows if not each.stopped and (each.next_start_in > 0 if change.rates else each.full)]
    count, since = sum(each.parked for each in kept), _first(look, kept)
    least = "at least " if scope.key is None and scope.name in look.partly else ""
    what, why = f"Limit {scope} {has}: {least}{look.waiting(count, since)}.", f"Overridden {in_words(change)}."
    do = (look.commands.throttle("reset", scope),) if less and count else ()
    long = look.is_long(since)
    return Finding("overridden", less and long, what, why, do, scope.name, scope.key, waits=count, since=since)


def _first(look: Look, rows: list[LimitStatus]) -> datetime | None:
    """Return the arrival time of the first task in the lines of these limits and keys."""
    buckets = {each.bucket for each in rows}
    return min((each.since for each in look.lines if each.since and each.status.bucket in buckets), default=None)


def _has_fewer(status: LimitStatus) -> bool:
    override = status.override
    return (
        override is not None
        and override.permits is not None
        and (status.permits is None or override.permits < status.permits)
    )


# -- waits of the first task in a line ---------------------------------------------------------------------------------


def _refusals(line: Line, view: TaskView) -> dict[str, LimitStatus]:
    """Return the kinds of reasons why the first task of a line does not start, each with the first such limit."""
    return {each.kind: each.status for each in reversed([*refusals_of(line.task, view)])}


def _kept_waiting(look: Look, line: Line, view: TaskView) -> Iterator[Finding]:
    if any(each.stopped for each in view.limits):  # `causes` has reported these limits
        return
    refused = _refusals(line, view)
    waits = look.waiting(line.status.parked, line.since)
    long, bucket = look.is_long(line.since), line.status.bucket
    if "undeclared" in refused:
        what = f"No worker has declared limit {refused['undeclared'].bucket}: {waits}."
        why = "The store does not have its number of permits; a worker of its tasks declares it when it starts."
        yield _of_line(line, "undeclared", long, what, why, (look.commands.worker(view.queue),), view.queue)
    elif "full" in refused:
        yield from _full(look, line, view, refused["full"], waits)
    elif "rate" in refused and long:
        yield _of_line(line, "rate", False, f"The rate keeps the line of {bucket}: {waits}.", _reasons(line, view))
    elif "barred" in refused and long:
        yield _of_line(line, "barred", False, f"Limit {bucket}: {waits}.", _reasons(line, view))


def _full(look: Look, line: Line, view: TaskView, full: LimitStatus, waits: str) -> Iterator[Finding]:
    """Yield the finding of a full limit: an alarm if nothing has started on the limit for too long."""
    mine = [each for each in look.holders if any(need.bucket == full.bucket for need in each.needs)]
    seen = sum(need.permits for each in mine for need in each.needs if need.bucket == full.bucket)
    last = max((each.since for each in mine), default=None) if seen >= full.held else None
    long = look.is_long(line.since)
    stuck = long and look.is_long(last)
    if not long or (_has_fewer(full) and not stuck):  # a lower number of permits has a finding of its own
        return
    why = " ".join([_reasons(line, view), *_longest(mine)])
    more = str((full.in_force or 0) + 1)
    do = (
        look.commands.throttle("show", full.bucket),
        look.commands.throttle("set", full.bucket, more, options=[("dry-run", None)]),
    )
    if stuck and last:
        ago = span((look.clock[0] - last).total_seconds())
        what = f"Limit {full.bucket} is full, and nothing has started on it for {ago}: {waits}."
        yield _of_line(line, "stuck", True, what, why, do)
    else:
        ago = f"; its last start was {span((look.clock[0] - last).total_seconds())} ago" if last else ""
        yield _of_line(line, "full", False, f"Limit {full.bucket} is full: {waits}{ago}.", why, do)


def _longest(holders: list[Holder]) -> Iterator[str]:
    if holders:
        first = min(holders, key=lambda each: (each.since, each.task_id))
        yield f"Task {first.task_id} has held longest, since {at(first.since)}, on worker {first.worker}."


def _reasons(line: Line, view: TaskView) -> str:
    return " ".join(explained(line.task, view).reasons)


def _of_line(
    line: Line, kind: str, alarm: bool, what: str, why: str, do: tuple[str, ...] = (), queue: str | None = None
) -> Finding:
    bucket = line.status.bucket
    return Finding(kind, alarm, what, why, do, bucket.name, bucket.key, queue, line.status.parked, line.since)


# -- starts that no worker takes ---------------------------------------------------------------------------------------


def _not_taken(look: Look, ready: list[tuple[Line, TaskView]]) -> Iterator[Finding]:
    """Yield the lines whose first task could start, and which no worker takes, also after a moment."""
    if not ready:
        return
    time.sleep(_AGAIN)
    for line, before in ready:
        view = look.reader.explain(line.task)
        waits_for_site = view.kind and not view.lacking  # for one with a permit free: each site is a line of its own
        if view.state != "parked" or view.ticket != before.ticket or _refusals(line, view) or waits_for_site:
            continue
        waits = look.waiting(line.status.parked, line.since)
        what = f"Limit {line.status.bucket} has room, but the first of its line, {line.task}, does not start: {waits}."
        do = () if is_outside(view.queue) or view.service else (look.commands.worker(view.queue),)
        yield _of_line(line, "no-slot", look.is_long(line.since), what, _reasons(line, view), do, view.queue)
