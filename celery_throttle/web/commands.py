"""Changes as commands to copy, for a shell and in Python, with any names quoted."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_throttle.core.buckets import Bucket

__all__ = ["Asked", "Command", "Copied", "python", "shell"]


class Command(NamedTuple):
    """A change to a limit: its name on the command line, its method, its label, its effect, and its parameters."""

    name: str
    method: str
    label: str
    does: str
    permits: bool = False
    lasts: bool = False


class Asked(NamedTuple):
    """The fields of a form as they were written: permits, rate, burst, duration and reason."""

    permits: str = ""
    rate: str = ""
    burst: str = ""
    lasts: str = ""
    why: str = ""


class Copied(NamedTuple):
    """One change, for a shell and in Python."""

    shell: str
    python: str


def shell(begin: str, command: str, options: Sequence[tuple[str, str]], values: Sequence[str]) -> str:
    """Return a command for a shell; an option with an empty value is a flag."""
    words = [command, *(f"--{name}={value}" if value else f"--{name}" for name, value in options)]
    words += ["--"] if any(each.startswith("-") for each in values) else []
    return f"{begin} throttle {' '.join(map(_quoted, [*words, *values]))}"


def python(bucket: Bucket | None, method: str, *values: object, **options: object) -> str:
    """Return the same change in Python, given the app."""
    given = [*map(repr, values), *(f"{name}={value!r}" for name, value in options.items() if value not in ("", None))]
    key = "" if bucket is None or bucket.key is None else f", key={bucket.key!r}"
    limit = "" if bucket is None else f".limit({bucket.name!r}{key})"
    return f"ThrottleControl(app){limit}.{method}({', '.join(given)})"


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
