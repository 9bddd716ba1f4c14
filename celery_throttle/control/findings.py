"""What a report finds: what is wrong, why, what to do; and the fixed order of that."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from celery_throttle.core.wording import counted, one_line, span

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_throttle.core.buckets import Bucket

__all__ = ["KINDS", "Commands", "Finding", "in_order", "waiting"]

#: The kinds of findings, in the order in which they are told.
KINDS = (
    *(
        "store",
        "settling",
        "set-aside",
        "dropped",
        "lost",
        "silent",
        "runs-twice",
        "duplicate-waits",
        "no-worker",
        "undeclared",
    ),  # work is lost, or cannot be done
    *("paused", "held-back", "stuck", "overridden", "no-slot", "disabled"),  # somebody said so, or hangs
    *("full", "rate", "barred", "declared", "set-up"),  # as it was meant, or nothing has come of it yet
)
_NEVER = datetime.max.replace(tzinfo=timezone.utc)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    Attributes:
        kind: which rule found it, one of `KINDS`.
        alarm: whether it needs somebody; else it is a remark.
        what: what is wrong, a sentence.
        why: as far as that is known.
        do: what to type, or to do, in this order.
        limit: which it is about, None if it is about none.
        key: the value of its key.
        queue: which it is about.
        waits: how many tasks wait for that reason.
        since: when the first of them came, by the store's clock; None if none is known to wait.
    """

    kind: str
    alarm: bool
    what: str
    why: str = ""
    do: tuple[str, ...] = ()
    limit: str | None = None
    key: str | None = None
    queue: str | None = None
    waits: int = 0
    since: datetime | None = None

    def __str__(self) -> str:
        lines = [f"{'!' if self.alarm else '-'} {one_line(self.what)}"]
        lines += [f"  why: {one_line(self.why)}"] if self.why else []
        return "\n".join(lines + [f"  do:  {one_line(each)}" for each in self.do])


class Commands(NamedTuple):
    """How the commands of whoever reads this begin, and which options all of them have."""

    begin: str = "celery -A proj"
    options: tuple[str, ...] = ()

    def throttle(self, command: str, bucket: Bucket | None = None, *values: str, dry_run: bool = False) -> str:
        """Return a ``throttle`` command, to be pasted into a shell whatever the names are."""
        words = [command]
        if bucket is not None:
            words += [] if bucket.key is None else [f"--key={bucket.key}"]
            words += ["--dry-run"] if dry_run else []
            words += ["--", bucket.name] if bucket.name.startswith("-") else [bucket.name]
        # What stands behind "--" is no option any more.
        words[1:1] = self.options
        return f"{self.begin} throttle {shlex.join([*words, *values])}"

    def worker(self, queue: str) -> str:
        """Return what starts a worker of a queue."""
        return f"{self._of_app} worker {shlex.join(['-Q', queue])}"

    def inspect(self, method: str, node: str) -> str:
        """Return what asks one worker by remote control."""
        return f"{self._of_app} inspect {shlex.join([method, '-d', node])}"

    @property
    def _of_app(self) -> str:
        return "celery -A proj" if self.options else self.begin  # a store alone has no worker


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings by kind, those first whose tasks wait for longest; keys of a limit as one."""
    merged: dict[object, list[Finding]] = {}
    for each in sorted(findings, key=_rank):
        alike = (each.kind, each.alarm, each.limit) if each.key is not None else each
        merged.setdefault(alike, []).append(each)
    return tuple(_as_one(several) for several in merged.values())


def _rank(finding: Finding) -> tuple[object, ...]:
    bucket = (finding.limit or "", finding.key or "", finding.queue or "")
    return KINDS.index(finding.kind), finding.since or _NEVER, *bucket, finding.what


def _as_one(several: list[Finding]) -> Finding:
    first = several[0]
    if len(several) == 1:
        return first
    others = f" So it is with {counted(len(several) - 1, 'more key')} of {first.limit}."
    return replace(first, what=first.what + others, waits=sum(each.waits for each in several))


def waiting(count: int, since: datetime | None, now: datetime) -> str:
    """Return how many wait, and how long the first of them does: ``12 tasks wait, the first for 3h 5m``."""
    if not count:
        return "nobody waits"
    first = f", the first for {span((now - since).total_seconds())}" if since else ""
    return f"{counted(count, 'task')} {'waits' if count == 1 else 'wait'}{first}"
