"""Read the fields of the store that are unreadable, or contradict the records."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_throttle.core.buckets import Bucket
from celery_throttle.core.wording import at, one_line
from celery_throttle.store.reading import UNREADABLE, text, when

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["SetAside", "Wrong", "read_set_aside", "read_wrong", "reason_of"]

#: Keys of the store whose fields are neither limits nor keys of limits.
_OF_TASKS = {"records", "messages", "locks", "workers"}


@dataclass(frozen=True)
class SetAside:
    """A value that was set aside: the record of a task, whose line went on without it, or a field of another key.

    The record is unreadable, or its task has begun as often as it may (``throttle_max_begins``).

    Attributes:
        task_id: the id of the task; "" for a field of another key, which was dropped.
        why: the defect.
        since: the time when the value was found.
        record: the value as it was.
        key: the name of the key that had the value, such as ``limits`` or ``overrides``.
        field: the field of that key: the name or id of a task, a limit, a worker, an identity lock, ...
    """

    task_id: str
    why: str
    since: datetime
    record: str
    key: str = "records"
    field: str = ""

    def __str__(self) -> str:
        if not self.task_id:
            return f"{self.key}[{one_line(self.field)}]: dropped since {at(self.since)}, it was {one_line(self.why)}"
        reason = reason_of(self.why, "it was", "its record is")
        return f"{one_line(self.task_id)}: set aside since {at(self.since)}, {reason}"


@dataclass(frozen=True)
class Wrong:
    """A field of the store that is unreadable, or contradicts the records.

    Attributes:
        key: the name of the key that has the field, such as ``limits`` or ``records``.
        field: the field of that key: the id of a task, or the name of a limit, a worker, an identity lock, ...
        why: the defect.
    """

    key: str
    field: str
    why: str

    def __str__(self) -> str:
        return f"{self.key}[{one_line(self.field)}]: {one_line(self.why)}"


def reason_of(why: str, of_task: str, of_record: str) -> str:
    """Return the reason as a clause: of a task that has begun too often, or of a record that is unreadable."""
    return f"{of_task if why.startswith('begun ') else of_record} {one_line(why)}"


def read_set_aside(raw: Any) -> tuple[SetAside, ...]:
    """Read the reply of unreadable.lua."""
    return tuple(_aside(text(name), packed) for name, packed in raw)


def _aside(name: str, packed: bytes) -> SetAside:
    try:
        kept = json.loads(packed.decode(errors="replace"))
        why, since, record = str(kept["why"]), when(kept["since"]), str(kept["record"])
    except UNREADABLE:
        why, since, record = "not readable any more", when(0), packed.decode(errors="replace")
    key, other, field = name.partition("\0")
    if other:
        return SetAside("", why, since, record, key, _field(key, field))
    return SetAside(name, why, since, record, field=name)


def read_wrong(raw: Any) -> tuple[str, list[Wrong]]:
    """Read the reply of mend.lua: the cursor of the next page, and a page."""
    after, rows = raw
    return text(after), [Wrong(text(key), _field(text(key), text(field)), text(why)) for key, field, why in rows]


def _field(key: str, field: str) -> str:
    """Return a field for people: a key of a limit as ``tenant[acme]``."""
    return field if key in _OF_TASKS else str(Bucket.parse(field))
