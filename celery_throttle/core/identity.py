"""Identities of calls: two calls with the same task name and equal arguments have the same identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from celery_throttle.core.json_text import quote
from celery_throttle.errors import ConfigurationError

__all__ = ["IDENTITY_LENGTH", "canonical", "identity_of", "pick"]

IDENTITY_LENGTH = 40

_TEXTUAL = (Decimal, UUID, datetime, date, time, timedelta)


def identity_of(task_name: str, value: object) -> str:
    """Return the identity of a call: the same text for equal values, always of `IDENTITY_LENGTH`.

    Raises:
        TypeError: a value has no canonical form.
    """
    text = f"[{quote(task_name)},{canonical(value)}]"
    return hashlib.sha256(text.encode()).hexdigest()[:IDENTITY_LENGTH]


def canonical(value: object) -> str:  # noqa: PLR0911 - a return for each kind of value
    """Return a value as JSON that is the same before and after a broker carried the value.

    So a tuple is a list, the keys of a mapping are text, and their order does not count.

    Raises:
        TypeError: the value has a type that cannot be compared.
    """
    if isinstance(value, str):
        return quote(value)
    if value is None or isinstance(value, (bool, float)):
        return json.dumps(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(canonical, value))}]"
    if isinstance(value, Mapping):
        pairs = sorted((_key(key), canonical(item)) for key, item in value.items())
        return _kind("map", (f"[{key},{item}]" for key, item in pairs))
    if isinstance(value, (set, frozenset)):
        return _kind("set", sorted(map(canonical, value)))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _kind("bytes", [quote(bytes(value).hex())])
    return _of_object(value)


def _of_object(value: Any) -> str:
    if isinstance(value, _TEXTUAL):
        return _kind(type(value).__name__, [quote(str(value))])
    dump = getattr(value, "model_dump", None)  # of a model of pydantic
    if dump is None:
        raise TypeError(f"cannot compare {type(value).__name__} values")
    try:
        return canonical(dump())
    except TypeError:  # a value of a type of pydantic's own, an address say
        return canonical(dump(mode="json"))


def _kind(name: str, items: Iterable[str]) -> str:
    # The name separates types that are alike in JSON; only these are written as objects.
    return f'{{"{name}":[{",".join(items)}]}}'


def _key(key: object) -> str:
    # JSON writes all keys of a mapping as text.
    return quote(key) if isinstance(key, str) else quote(canonical(key))


def pick(arguments: Mapping[str, object], path: str) -> object:
    """Return the value at a dotted path in the arguments of a call: ``order_id``, ``order.id``.

    Raises:
        ConfigurationError: the path leads to no value.
    """
    found: Any = arguments
    for name in path.split("."):
        try:
            found = found[name] if isinstance(found, Mapping) else getattr(found, name)
        except (KeyError, AttributeError):
            only = f", only {', '.join(arguments)}" if arguments else ""
            raise ConfigurationError(f"the call has no {path!r}{only}") from None
    return found
