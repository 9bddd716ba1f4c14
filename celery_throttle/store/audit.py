"""Read the audit: the changes that operators made at run time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_throttle.core.buckets import Bucket
from celery_throttle.core.wording import at, counted, end_of, one_line
from celery_throttle.store.limit_status import (
    RateStatus,
    RuntimeOverride,
    rates_text,
    read_rates,
    read_runtime_override,
)
from celery_throttle.store.reading import readable, when

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

__all__ = ["Change", "read_changes"]


@dataclass(frozen=True)
class Change:
    """A change that an operator made at run time.

    Attributes:
        at: the time of the change, by the store's clock.
        action: ``override``, ``reset``, ``pause``, ``resume``, ``disable``, ``enable``, ``release-hold``,
            ``drop``, ``drain`` or ``unlock``.
        by: the name of the operator.
        why: the operator's reason.
        limit: the name of the changed limit, None if the change is about no limit.
        key: the value of the limit's key, None for the limit itself.
        before: the override (or pause, ...) until then, None if there was none.
        after: the override (or pause, ...) from then on, None if there is none.
        permits_before: permits in force until then; None: any number, or the change is about no limit.
        permits_after: permits in force from then on; None as above.
        task_id: of ``unlock``: the task that had the lock; of ``drop``: the task, if only one was dropped.
        task_name: of ``unlock``: the name of the task.
        tasks: the number of dropped or drained tasks.
        rates_before: the rates in force until then.
        rates_after: the rates in force from then on.
    """

    at: datetime
    action: str
    by: str
    why: str
    limit: str | None = None
    key: str | None = None
    before: RuntimeOverride | None = None
    after: RuntimeOverride | None = None
    permits_before: int | None = None
    permits_after: int | None = None
    task_id: str | None = None
    task_name: str | None = None
    tasks: int = 0
    rates_before: tuple[RateStatus, ...] = ()
    rates_after: tuple[RateStatus, ...] = ()

    def __str__(self) -> str:
        why = f" ({one_line(self.why)})" if self.why else ""
        return f"{at(self.at)} {one_line(self.by) or 'unknown'}: {self.what}{why}"

    @property
    def what(self) -> str:
        """The action and its subject, in words."""
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


def _change(record: dict[str, Any]) -> Change:
    bucket = Bucket.parse(record["bucket"]) if "bucket" in record else None

    def override(moment: str) -> RuntimeOverride | None:
        found = (bucket, record[moment]) if moment in record else None
        return read_runtime_override(found, "both" if record["action"] in ("override", "reset") else "")

    return Change(
        when(record["at"]),
        record["action"],
        record["by"],
        record["why"],
        bucket.name if bucket else None,
        bucket.key if bucket else None,
        override("before"),
        override("after"),
        _permits(record.get("permits_before")),
        _permits(record.get("permits_after")),
        record.get("task"),
        record.get("name") or None,
        record.get("tasks", 0),
        read_rates(record.get("rates_before")),
        read_rates(record.get("rates_after")),
    )


def _permits(number: int | None) -> int | None:
    return None if number is None or number < 0 else number
