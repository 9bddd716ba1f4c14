"""What the page's buttons do, as commands to copy: for a shell, and in Python; whatever the names are."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_throttle.core.buckets import Bucket

__all__ = ["Asked", "Command", "Copied", "python", "shell"]


class Command(NamedTuple):
    """Something to be done to a limit: its name on the command line, its method, and what it takes and does."""

    name: str
    method: str
    label: str
    does: str
    permits: bool = False
    lasts: bool = False


class Asked(NamedTuple):
    """What somebody wants: the permits, the rate with its burst and the duration as they were written, and why."""

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
    """Return a command, to be pasted into a shell; options that are empty are left out."""
    words = [command, *(f"--{name}={value}" if value else f"--{name}" for name, value in options)]
    words += ["--"] if any(each.startswith("-") for each in values) else []
    return f"{begin} throttle {' '.join(map(_quoted, [*words, *values]))}"


def python(bucket: Bucket | None, method: str, *values: object, **options: object) -> str:
    """Return the same in Python, from the app on."""
    given = [*map(repr, values), *(f"{name}={value!r}" for name, value in options.items() if value not in ("", None))]
    key = "" if bucket is None or bucket.key is None else f", key={bucket.key!r}"
    limit = "" if bucket is None else f".limit({bucket.name!r}{key})"
    return f"ThrottleControl(app){limit}.{method}({', '.join(given)})"


def _quoted(word: str) -> str:
    """Quote for a shell; what would steer a terminal into which it is pasted is written as an escape."""
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
