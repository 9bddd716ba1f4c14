"""Carry out the commands of ``celery control throttle_pause`` and the like, in a worker that receives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_throttle.control.panel import STEERS, WORDS, signature
from celery_throttle.control.throttle_control import ThrottleControl, as_shown
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.checks import seconds
from celery_throttle.core.durations import read_duration
from celery_throttle.errors import ConfigurationError, ThrottleError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["carry_out"]

_NUMBERS = {"permits", "rate", "burst"}
_OPTIONS = {"key", "why", "by", "request"}


def carry_out(app: Any, command: str, arguments: Mapping[str, Any], *, by: str) -> dict[str, str]:
    """Change a limit; return ``{"ok": status after the change}``, or ``{"error": one line}``.

    Args:
        app: the worker's app.
        command: one of `STEERS`.
        arguments: the sent arguments: ``limit``, ``permits``, ``rate`` (text, or a list), ``burst``, ``key``, ``for``
            (seconds, or ``"10m"``), ``why``, ``by``, and ``request``, which is the same for all receiving workers; or
            words such as ``why=...``.
        by: the operator, if the arguments have none.
    """
    try:
        return {"ok": _carried_out(app, command, _options(command, arguments, by))}
    except ThrottleError as error:
        return {"error": " ".join(str(error).split())}


def _carried_out(app: Any, command: str, options: dict[str, Any]) -> str:
    throttle = ThrottleControl(app)
    name, key = as_shown(throttle, options.pop("limit"), options.pop("key", None))
    limit = throttle.limit(name, key=key).once(options.pop("request", ""))
    verb = STEERS[command]
    if verb.lasts:
        options["until"] = _seconds(options.pop("for", None))
    changed = getattr(limit, verb.method)(**options)
    nothing = verb.nothing.format(Bucket(limit.name, limit.key)) if changed is False else ""
    return f"{nothing} {limit.status()}".lstrip()


def _options(command: str, arguments: Mapping[str, Any], by: str) -> dict[str, Any]:
    """Return the sent arguments by name."""
    verb, given = STEERS[command], dict(arguments)
    words = [str(given.pop(word)) for word in WORDS if word in given]
    number = given.get("permits")
    if isinstance(number, str) and not number.isdecimal() and ("=" in number or "/" not in number):
        words.insert(0, given.pop("permits"))  # the number was left out, so this is the first word
    limit = given.pop("limit", None)
    # The command line adds the operator to the limit; other senders may not.
    options = {"by": by} | (limit if isinstance(limit, dict) else {"limit": limit}) | given
    wanted = {"limit"}
    known = wanted | _OPTIONS | ({"for"} if verb.lasts else set()) | (_NUMBERS if verb.permits else set())
    options |= _read_words(words, known - wanted)
    texts = [options.get(name) for name in ("limit", "request") if name in options]
    if not wanted <= options.keys() <= known or not all(isinstance(text, str) for text in texts):
        raise ConfigurationError(f"{command} wants {signature(verb)}, got {_shown(arguments)}")
    for name in ("permits", "burst"):
        if isinstance(number := options.get(name), str) and number.isdecimal():
            options[name] = int(number)
    return options


def _read_words(words: list[str], names: set[str]) -> dict[Any, str]:
    """Read each ``name=value``; the first word may be a key alone. Other or repeated words are stored under None."""
    found: dict[Any, str] = {}
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not equals:
            name, value = "" if number else "key", word
        found[name if name in names and name not in found else None] = value
    return found


def _seconds(lasts: object) -> Any:
    """Return a duration from text, seconds or None."""
    if isinstance(lasts, str):
        return read_duration(lasts, "for=")
    return None if lasts is None else seconds("for", lasts, 0.001, usual=3600)


def _shown(arguments: Mapping[str, Any]) -> str:
    """Return the sent arguments as people write them."""
    limit = arguments.get("limit")
    words = [limit.get("limit") if isinstance(limit, dict) else limit, arguments.get("permits")]
    words += [arguments[word] for word in WORDS if word in arguments]
    others = arguments.keys() - {"limit", "permits", "request", *WORDS}
    words += [f"{name}={value}" for name, value in arguments.items() if name in others]
    return " ".join(f"{word}"[:80] for word in words if word is not None) or "nothing"
