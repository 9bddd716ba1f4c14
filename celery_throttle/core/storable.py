"""Text as the store takes it: everything that goes there is made of these functions, whichever way it came."""

from __future__ import annotations

import hashlib
from typing import Any

from celery_throttle.core.json_text import quote, write

__all__ = ["quoted", "storable", "written"]

#: The most characters that are kept of a text that cannot be stored as it is.
_READABLE = 200


def storable(value: object) -> str:
    """Return a text that can be encoded: unchanged, or escaped, with a hash so that different texts stay different.

    JSON can carry half of a surrogate pair, and so can ids, exceptions and file names. UTF-8 cannot, and cjson refuses
    the whole call. Other values than text come as their ``repr``.
    """
    text = value if isinstance(value, str) else repr(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            return f"{text[:_READABLE].encode('utf-8', 'backslashreplace').decode()} sha256:{digest[:32]}"
    return text


def quoted(text: str) -> str:
    """Return a text as JSON for the store."""
    return quote(text) if type(text) is str and text.isascii() else quote(storable(text))


def written(value: Any) -> str:
    """Return a value as JSON for the store."""
    try:
        text = write(value)
    except TypeError:
        return write(_storable_within(value))
    return text if "\\ud" not in text else write(_storable_within(value))


def _storable_within(value: Any) -> Any:
    if isinstance(value, dict):
        return {storable(key): _storable_within(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_storable_within(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float)) else storable(value)
