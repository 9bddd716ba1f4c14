"""Find the causes of waits: runtime overrides, full limits, rates, and starts that no worker takes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery_throttle.control.findings import Finding, waiting
from celery_throttle.core.naming import is_outside
from celery_throttle.core.wording import at, span
from celery_throttle.store.explain import explained
from celery_throttle.store.limit_status import rates_text
from celery_throttle.store.standing import in_words, refusals_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from celery_throttle.control.lines import Line, Look
    from celery_throttle.core.buckets import Bucket
    from celery_throttle.store.holders import Holder
    from celery_throttle.store.limit_status import LimitStatus, RateStatus, RuntimeOverride
    from celery_throttle.store.task_view import TaskView

__all__ = ["causes"]

#: Seconds after which a start that no worker took counts as not taken: a worker with a slot takes one in a tenth.
_AGAIN = 1.0


def causes(look: Look) -> Iterator[Finding]:
    """Yield the causes of waits in the lines that were read, and the runtime overrides of limits."""
    for scope, override, lines, rows in _scopes(look, "paused"):
        yield _stopped(look, "paused", scope, override, lines, rows)
    for scope, override, lines, rows in _scopes(look, "held_back"):
        yield _stopped(look, "held-back", scope, override, lines, rows)
    for scope, override, _, rows in _scopes(look, "disabled"):
        yield _disabled(look, scope, override, rows)
    for scope, override, lines, rows in _scopes(look, "override"):
        yield _overridden(look, scope, override, lines, rows)
    for scope, override, lines, rows in _scopes(look, "rate_override"):
        yield _other_rate(look, scope, override, lines, rows)
    moving = [each for each in look.lines if not each.status.stopped]
    views = [(line, look.reader.explain(line.first.task_id)) for line in moving if line.first]
    waits = [(line, view) for line, view in views if view.state == "parked" and view.line]
    yield from (found for line, view in waits for found in _kept_waiting(look, line, view))
    yield from _not_taken(look, [(line, view) for line, view in waits if not _refusals(line, view)])


# -- runtime overrides -------------------------------------------------------------------------------------------------


def _scopes(look: Look, what: str) -> Iterator[tuple[Bucket, RuntimeOverride, list[Line], list[LimitStatus]]]:
    """Yield (scope, override, lines, statuses) for each runtime override of this kind."""
    found: dict[Bucket, tuple[RuntimeOverride, list[LimitStatus]]] = {}
    everything = {each.bucket: each for each in (*look.statuses, *(line.status for line in look.lines))}
    for status in everything.values():
        override: RuntimeOverride | None = getattr(status, what)
        if override:
            found.setdefault(status.scope(override), (override, []))[1].append(status)
    for scope, (override, rows) in found.items():
        buckets = {each.bucket for each in rows}
        yield scope, override, [each for each in look.lines if each.status.bucket in buckets], rows


def _first(lines: list[Line]) -> datetime | None:
    return min((each.since for each in lines if each.since), default=None)


def _stopped(
    look: Look, kind: str, scope: Bucket, override: RuntimeOverride, lines: list[Line], rows: list[LimitStatus]
) -> Finding:
    count, since = look.parked(scope, rows), _first(lines)
    word, ends = {"paused": ("paused", "resume"), "held-back": ("held back", "release-hold")}[kind]
    return Finding(
        kind,
        look.is_long(since),
        f"Limit {scope} is {word}: {waiting(count, since, look.clock[0])}.",
        f"{word.capitalize()} {in_words(override)}.",
        (look.commands.throttle(ends, scope),) if count else (),
        scope.name,
        scope.key,
        waits=count,
        since=since,
    )


def _disabled(look: Look, scope: Bucket, override: RuntimeOverride, rows: list[LimitStatus]) -> Finding:
    over = [each for each in rows if each.permits is not None and each.held > each.permits]
    most = max(over, key=lambda each: each.held, default=None)
    runs = f": {most.held} run of {most.bucket}, the code allows {most.permits}" if most else ""
    return Finding(
        "disabled",
        bool(over),
        f"Limit {scope} is not enforced{runs}.",
        f"Disabled {in_words(override)}.",
        (look.commands.throttle("enable", scope),),
        scope.name,
        scope.key,
    )


def _overridden(
    look: Look, scope: Bucket, override: RuntimeOverride, lines: list[Line], rows: list[LimitStatus]
) -> Finding:
    less = any(_has_fewer(each) for each in rows)
    code = "any number" if rows[0].permits is None else str(rows[0].permits)
    full = [each for each in rows if each.full]
    return _of_override(look, scope, override, f"has {override.permits} instead of {code}", full, lines, less=less)


def _other_rate(
    look: Look, scope: Bucket, override: RuntimeOverride, lines: list[Line], rows: list[LimitStatus]
) -> Finding:
    less = _pace(override.rates) < _pace(rows[0].rates)
    has = f"has the rate {rates_text(override.rates)} instead of {rates_text(rows[0].rates) or 'none'}"
    late = [each for each in rows if each.next_start_in > 0]
    return _of_override(look, scope, override, has, late, lines, less=less)


def _of_override(
    look: Look,
    scope: Bucket,
    override: RuntimeOverride,
    has: str,
    kept: list[LimitStatus],
    lines: list[Line],
    *,
    less: bool,
) -> Finding:
    """Return the finding of an override; ``less``: whether the override allows less than the code."""
    kept = [each for each in kept if not each.stopped]
    buckets = {each.bucket for each in kept}
    count, since = sum(each.parked for each in kept), _first([each for each in lines if each.status.bucket in buckets])
    least = "at least " if scope.key is None and scope.name in look.partly else ""
    return Finding(
        "overridden",
        less and look.is_long(since),
        f"Limit {scope} {has}: {least}{waiting(count, since, look.clock[0])}.",
        f"Overridden {in_words(override)}.",
        (look.commands.throttle("reset", scope),) if less and count else (),
        scope.name,
        scope.key,
        waits=count,
        since=since,
    )


def _pace(rates: tuple[RateStatus, ...]) -> float:
    return min((each.per_second for each in rates), default=float("inf"))


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
    found = list(refusals_of(line.first.task_id if line.first else "", view))
    return {each.kind: each.status for each in reversed(found)}


def _kept_waiting(look: Look, line: Line, view: TaskView) -> Iterator[Finding]:
    if any(each.stopped for each in view.limits):  # `causes` has reported these limits
        return
    refused = _refusals(line, view)
    waits = waiting(line.status.parked, line.since, look.clock[0])
    long, bucket = look.is_long(line.since), line.status.bucket
    if "undeclared" in refused:
        what = f"No worker has declared limit {refused['undeclared'].bucket}: {waits}."
        why = "The store does not have its number of permits; a worker of its tasks declares it when it starts."
        yield _of_line(line, "undeclared", long, what, why, (look.commands.worker(view.queue),), view.queue)
    elif "full" in refused:
        yield from _full(look, line, view, refused["full"], waits)
    elif "rate" in refused and long:
        why = " ".join(_reasons(line, view))
        yield _of_line(line, "rate", False, f"The rate keeps the line of {bucket}: {waits}.", why)
    elif "barred" in refused and long:
        yield _of_line(line, "barred", False, f"Limit {bucket}: {waits}.", " ".join(_reasons(line, view)))


def _full(look: Look, line: Line, view: TaskView, full: LimitStatus, waits: str) -> Iterator[Finding]:
    """Yield the finding of a full limit: an alarm if nothing has started on the limit for too long."""
    mine = [each for each in look.holders if any(need.bucket == full.bucket for need in each.needs)]
    seen = sum(need.permits for each in mine for need in each.needs if need.bucket == full.bucket)
    last = max((each.since for each in mine), default=None) if seen >= full.held else None
    long = look.is_long(line.since)
    stuck = long and look.is_long(last)
    if not long or (_has_fewer(full) and not stuck):  # a lower number of permits has a finding of its own
        return
    why = " ".join([*_reasons(line, view), *_longest(mine)])
    more = str((full.in_force or 0) + 1)
    do = (look.commands.throttle("show", full.bucket), look.commands.throttle("set", full.bucket, more, dry_run=True))
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


def _reasons(line: Line, view: TaskView) -> tuple[str, ...]:
    return explained(line.first.task_id if line.first else "", view).reasons


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
        task = line.first.task_id if line.first else ""
        view = look.reader.explain(task)
        if view.state != "parked" or view.ticket != before.ticket or _refusals(line, view):
            continue
        waits = waiting(line.status.parked, line.since, look.clock[0])
        what = f"Limit {line.status.bucket} has room, but the first of its line, {task}, does not start: {waits}."
        why = " ".join(_reasons(line, view))
        do = () if is_outside(view.queue) or view.service else (look.commands.worker(view.queue),)
        yield _of_line(line, "no-slot", look.is_long(line.since), what, why, do, view.queue)
