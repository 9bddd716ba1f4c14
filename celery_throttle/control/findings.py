"""The findings of a report: the problem, its reason and the fix, in a fixed order."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from celery_throttle.core.wording import counted, one_line, span

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from celery_throttle.core.buckets import Bucket

__all__ = ["KINDS", "Commands", "Finding", "in_order", "waiting"]

#: The kinds of findings, in the order of the report.
KINDS = (
    # Work is lost, or cannot be done:
    *("store", "settling", "set-aside", "dropped", "lost", "silent", "runs-twice", "duplicate-waits", "lock-left"),
    *("no-worker", "undeclared"),
    *("paused", "held-back", "stuck", "overridden", "no-slot", "disabled"),  # an operator's change, or a hanging task
    *("full", "rate", "barred", "declared", "set-up"),  # intended, or without effect so far
)
_NEVER = datetime.max.replace(tzinfo=timezone.utc)


@dataclass(frozen=True)
class Finding:
    """A problem, or a remark.

    Attributes:
        kind: the rule that made the finding, one of `KINDS`.
        alarm: whether the finding needs an operator; else it is a remark.
        what: the problem, a sentence.
        why: the reason, as far as it is known.
        do: the commands or steps of the fix, in this order.
        limit: the limit of the finding, None if it is about none.
        key: the value of the limit's key.
        queue: the queue of the finding, None if it is about none.
        waits: the number of tasks that wait for this reason.
        since: the arrival time of the first of them, by the store's clock; None if none is known to wait.
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
    """The beginning of the reader's commands, and the options that all of them have."""

    begin: str = "celery -A proj"
    options: tuple[str, ...] = ()

    def throttle(
        self, command: str, bucket: Bucket | None = None, *values: str, options: Sequence[tuple[str, str | None]] = ()
    ) -> str:
        """Return a ``throttle`` command for a shell, with quoted words.

        An option whose value is None is a flag; one whose value is "" is left out.
        """
        given = [(name, value) for name, value in options if value != ""]
        key = [("key", bucket.key)] if bucket and bucket.key is not None else []
        words = [f"--{name}" if value is None else f"--{name}={value}" for name, value in (*key, *given)]
        if bucket is not None:
            words += ["--", bucket.name] if bucket.name.startswith("-") else [bucket.name]
        return f"{self.begin} throttle {' '.join(map(_quoted, [command, *self.options, *words, *values]))}"

    def worker(self, queue: str) -> str:
        """Return the command that starts a worker of a queue."""
        return f"{self._of_app} worker {shlex.join(['-Q', queue])}"

    def inspect(self, method: str, node: str) -> str:
        """Return the command that queries one worker by remote control."""
        return f"{self._of_app} inspect {shlex.join([method, '-d', node])}"

    @property
    def _of_app(self) -> str:
        return "celery -A proj" if self.options else self.begin  # a store alone has no worker


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings by kind, the longest waits first; findings of several keys of a limit are merged."""
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
    others = f" The same holds for {counted(len(several) - 1, 'more key')} of {first.limit}."
    return replace(first, what=first.what + others, waits=sum(each.waits for each in several))


def waiting(count: int, since: datetime | None, now: datetime) -> str:
    """Return the number of parked tasks and the wait of the first: ``12 tasks wait, the first for 3h 5m``."""
    if not count:
        return "no task waits"
    first = f", the first for {span((now - since).total_seconds())}" if since else ""
    return f"{counted(count, 'task')} {'waits' if count == 1 else 'wait'}{first}"


def _quoted(word: str) -> str:
    """Quote a word for a shell; characters that would control a terminal are escaped."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = "".join(
        f"\\{each}"
        if each in "\\'"
        else each
        if each.isprintable()
        else "".join(f"\\x{byte:02x}" for byte in each.encode("utf-8", "surrogatepass"))
        for each in word
    )
    return f"$'{escaped}'"
