"""The changes that people made at run time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_throttle.core.buckets import Bucket
from celery_throttle.core.wording import at, counted, end_of, one_line
from celery_throttle.store.limit_status import RateStatus, Said, rates_text, read_rates, read_said
from celery_throttle.store.reading import readable, when

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

__all__ = ["Change", "read_changes"]


@dataclass(frozen=True)
class Change:
    """What somebody changed at run time.

    Attributes:
        at: when, by the store's clock.
        action: ``override``, ``reset``, ``pause``, ``resume``, ``disable``, ``enable``, ``release-hold``,
            ``drop``, ``drain`` or ``unlock``.
        by: who.
        why: in their words.
        limit: which was changed, None if it was no limit.
        key: the value of its key, None for the limit itself.
        before: what was said of it until then, None if that was nothing.
        after: what is said of it from then on, None if that is nothing.
        permits_before: in force until then; None: any number, or it was no limit.
        permits_after: in force from then on; None as above.
        task_id: of ``unlock``: who had the lock; of ``drop``: which, if only one was meant.
        task_name: of ``unlock``.
        tasks: how many were dropped, or drained.
        rates_before: in force until then.
        rates_after: in force from then on.
    """

    at: datetime
    action: str
    by: str
    why: str
    limit: str | None = None
    key: str | None = None
    before: Said | None = None
    after: Said | None = None
    permits_before: int | None = None
    permits_after: int | None = None
    task_id: str | None = None
    task_name: str | None = None
    tasks: int = 0
    rates_before: tuple[RateStatus, ...] = ()
    rates_after: tuple[RateStatus, ...] = ()

    def __str__(self) -> str:
        why = f" ({one_line(self.why)})" if self.why else ""
        return f"{at(self.at)} {one_line(self.by) or 'somebody'}: {self.what}{why}"

    @property
    def what(self) -> str:
        """What was done to what, in words."""
        return ", ".join(self._facts())

    def _facts(self) -> Iterator[str]:
        yield f"{self.action} {self._about()}".rstrip()
        if self.tasks and self.task_id is None:
            yield counted(self.tasks, "task")
        if self.permits_before != self.permits_after:
            yield f"{_in_force(self.permits_before)} -> {_in_force(self.permits_after)} permits"
        if self.rates_before != self.rates_after:
            yield f"rate {rates_text(self.rates_before) or 'none'} -> {rates_text(self.rates_after) or 'none'}"
        if self.after and self.after.until:
            yield f"until {end_of(self.at, self.after.until)}"

    def _about(self) -> str:
        if self.task_id is not None:
            return f"{one_line(self.task_name or 'task')}[{one_line(self.task_id)}]"
        return "" if self.limit is None else str(Bucket(self.limit, self.key))


def _in_force(permits: int | None) -> str:
    return "any number of" if permits is None else str(permits)


def read_changes(raw: Any) -> tuple[Change, ...]:
    """Read the reply of audit.lua; newest first."""
    return tuple(readable(lambda packed: _change(json.loads(packed)), reversed(raw)))


def _change(told: dict[str, Any]) -> Change:
    bucket = Bucket.parse(told["bucket"]) if "bucket" in told else None

    def said(moment: str) -> Said | None:
        found = (bucket, told[moment]) if moment in told else None
        return read_said(found, "both" if told["action"] in ("override", "reset") else "")

    return Change(
        when(told["at"]),
        told["action"],
        told["by"],
        told["why"],
        bucket.name if bucket else None,
        bucket.key if bucket else None,
        said("before"),
        said("after"),
        _permits(told.get("permits_before")),
        _permits(told.get("permits_after")),
        told.get("task"),
        told.get("name") or None,
        told.get("tasks", 0),
        read_rates(told.get("rates_before")),
        read_rates(told.get("rates_after")),
    )


def _permits(number: int | None) -> int | None:
    return None if number is None or number < 0 else number
