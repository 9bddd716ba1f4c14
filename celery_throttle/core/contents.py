"""Rules for the values in the head of a message, which any program may have written: which of them can be used.

`UnusableMessage` is raised for a value that a task cannot do without. Its text has the header and the value.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from celery_throttle.core.checks import is_whole
from celery_throttle.errors import UnusableMessage

__all__ = ["attempt_of", "check_links", "check_stamps", "check_time_limits", "publication_in", "rounds_of", "stored_id"]

_PUBLICATION = re.compile(r"[0-9A-Za-z_~-]{1,40}")
#: The most characters of an id that the store has as it is.
_LONGEST_ID = 1000
#: More than any task has retries, because a task that `replace` sends counts its retries from 0 again.
_REPLACED = 1 << 20


def stored_id(task_id: object) -> str:
    """Return a task id as the store has it: unchanged if it is ordinary text, else a hash.

    Celery runs a task with any id. The store needs text that is not empty, can be encoded and has no zero byte.
    """
    if isinstance(task_id, str) and 0 < len(task_id) <= _LONGEST_ID and "\0" not in task_id:
        if task_id.isascii():
            return task_id
        try:
            task_id.encode()
        except UnicodeEncodeError:
            pass
        else:
            return task_id
    return "sha256:" + hashlib.sha256(repr(task_id).encode()).hexdigest()[:32]


def attempt_of(retries: object, nesting: object) -> int:
    """Return a number that is larger for a retry, or a message sent by `replace`, and the same for a second delivery.

    Raises:
        UnusableMessage: one of the numbers cannot be put in order with those of other deliveries.
    """
    if type(retries) is int and 0 <= retries < _REPLACED and not nesting:
        return retries
    return _counted("replaced_task_nesting", nesting) * _REPLACED + _counted("retries", retries)


def _counted(name: str, value: object) -> int:
    if not isinstance(value, (int, float)):
        return 0  # Celery cannot count on from another value either, so no retry follows
    if not 0 <= value < _REPLACED:  # NaN, too
        raise _unusable(name, value, f"a number from 0 to {_REPLACED - 1}")
    return int(value)


def check_time_limits(limits: object) -> None:
    """Raise `UnusableMessage` unless a pool can use these time limits of a message."""
    if not isinstance(limits, (list, tuple)) or len(limits) != 2 or not all(map(_is_time, limits)):  # noqa: PLR2004
        raise _unusable("timelimit", limits, "two numbers of seconds or nulls")


def _is_time(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and abs(value) < 2**53)  # not NaN


def check_stamps(headers: Mapping[str, Any]) -> None:
    """Raise `UnusableMessage` unless Celery can compare the stamps of a message, if any, with those revoked."""
    names = headers.get("stamped_headers")
    if names and (not isinstance(names, (list, tuple)) or not set(map(type, names)) <= {str}):
        raise _unusable("stamped_headers", names, "a list of names")
    stamps = headers.get("stamps")
    if stamps and not isinstance(stamps, Mapping):
        raise _unusable("stamps", stamps, "an object")


def check_links(links: object) -> None:
    """Raise `UnusableMessage` unless the third part of a body (links, chain, chord) can be used."""
    if not isinstance(links, dict) or not set(map(type, links)) <= {str}:
        raise _unusable("embed (the third part of its body)", links, "an object")


def publication_in(header: Mapping[str, object]) -> str:
    """Return the name of a publication, from our header; "" if it has none."""
    name = header.get("publication")
    return name if isinstance(name, str) and _PUBLICATION.fullmatch(name) else ""


def rounds_of(header: Mapping[str, object]) -> int:
    """Return how often a task has gone back in line, from our header."""
    rounds = header.get("rounds")
    return rounds if is_whole(rounds) else 0


def _unusable(name: str, value: object, must_be: str) -> UnusableMessage:
    return UnusableMessage(f"{name} is {value!r:.200}, and must be {must_be}: correct its publisher")
