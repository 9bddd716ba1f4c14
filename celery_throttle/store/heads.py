"""Read the head of a stored message, never its body, which may be a pickle."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, NamedTuple

from celery_throttle.store.parcel import head_of

#: The most characters of arguments. Celery's own texts have up to 1024, those of other senders any number.
_LONGEST = 1000


class Head(NamedTuple):
    """The headers of a message.

    Attributes:
        task_name: the name of the task, None if it is not known.
        args: the positional arguments as text, cut; None if there is no such text.
        kwargs: the keyword arguments, in the same form.
        eta: the time before which the task must not start, None if the task has none.
    """

    task_name: str | None = None
    args: str | None = None
    kwargs: str | None = None
    eta: datetime | None = None


def read_head(raw: bytes) -> Head:
    """Return the headers of a message that are readable."""
    headers = _headers(raw)
    texts = (_text(headers.get(name)) for name in ("task", "argsrepr", "kwargsrepr"))
    name, args, kwargs = texts
    return Head(name, _cut(args), _cut(kwargs), _moment(headers.get("eta")))


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
        # Celery reads a time without a zone as UTC.
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None
