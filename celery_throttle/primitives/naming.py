"""What the arguments of the primitives may be, and what their keys are called."""

from __future__ import annotations

import re

from celery_throttle.core.keys import LAYOUT
from celery_throttle.errors import ConfigurationError

__all__ = ["named_key", "printable", "space", "whole_number"]

_PRINTABLE = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
_PREFIX = re.compile(r"[^\x00-\x20\x7f{}*?\[\]\\]{1,200}")


def space(prefix: object) -> str:
    """Return what the keys of a prefix begin with; the hash tag keeps them on one shard.

    Raises:
        ConfigurationError: the prefix cannot be a hash tag, or would need quoting in ``SCAN MATCH``.
    """
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise ConfigurationError(f"prefix must be text without braces, wildcards and blanks, got {prefix!r}")
    return f"{{{prefix}}}:{LAYOUT}"


def named_key(prefix: object, kind: str, name: object) -> str:
    """Return the key of one thing of that kind.

    Raises:
        ConfigurationError: the prefix or the name cannot be part of a key.
    """
    return f"{space(prefix)}:{kind}:{printable(f'The name of a {kind}', name)}"


def printable(what: str, text: object) -> str:
    """Return the text if it can be part of a key.

    Raises:
        ConfigurationError: it cannot.
    """
    if not isinstance(text, str) or not _PRINTABLE.fullmatch(text):
        raise ConfigurationError(f"{what} must be 1 to 200 printable characters, got {text!r}")
    return text


def whole_number(what: str, value: object, least: int, most: int) -> int:
    """Return the value if it is a whole number in that range.

    Raises:
        ConfigurationError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigurationError(f"{what} must be a whole number from {least} to {most}, got {value!r}")
    return value
