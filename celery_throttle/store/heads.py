"""What a stored message says of its task. Only its head is read, never its body, which may be a pickle."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, NamedTuple

from celery_throttle.store.parcel import head_of

__all__ = ["Head", "read_head", "task_name_in"]

#: Characters of arguments. Celery's own texts have 1024 at most, those of other senders any number.
_LONGEST = 1000


class Head(NamedTuple):
    """What the headers of a message say.

    Attributes:
        task_name: None if it is not known.
        args: the positional arguments as text, cut; None if there is no such text.
        kwargs: the arguments by name, alike.
        eta: before which the task must not start, None if it has none.
    """

    task_name: str | None = None
    args: str | None = None
    kwargs: str | None = None
    eta: datetime | None = None


def read_head(raw: bytes) -> Head:
    """Return what the head of a message says, as far as it can be read."""
    said = _headers(raw)
    texts = (_text(said.get(name)) for name in ("task", "argsrepr", "kwargsrepr"))
    name, args, kwargs = texts
    return Head(name, _cut(args), _cut(kwargs), _moment(said.get("eta")))


def task_name_in(raw: bytes) -> str | None:
    """Return only the task's name, for lists of many tasks."""
    return _text(_headers(raw).get("task"))


def _headers(raw: bytes) -> dict[str, Any]:
    try:
        found = head_of(raw)["headers"]
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"


def _moment(value: object) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
        # As Celery takes one without a zone.
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None
