"""Answer Celery's remote control in a worker: read a command, carry it out, and answer within a short timeout."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from typing import TYPE_CHECKING, Any

from celery import bootsteps

from celery_throttle.control import panel
from celery_throttle.control.panel import STEERS, WORDS, signature
from celery_throttle.control.throttle_control import ThrottleControl, as_shown
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.checks import seconds
from celery_throttle.core.durations import read_duration
from celery_throttle.errors import ConfigurationError, ThrottleError
from celery_throttle.version import versions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_throttle.worker.loop import Loop

__all__ = ["Remote", "RemoteStep", "carry_out"]

#: The most seconds for which the consumer waits: it answers before it goes on, and the sender waits a second.
_PATIENCE = 0.5
_NUMBERS = {"permits", "rate", "burst"}
_OPTIONS = {"key", "why", "by", "request"}


def carry_out(app: Any, command: str, arguments: Mapping[str, Any], *, by: str) -> dict[str, str]:
    """Change a limit by a command of `STEERS`; return ``{"ok": its status then}``, or ``{"error": one line}``.

    ``arguments``: as they were sent: ``limit``, ``permits``, ``rate`` (text, or a list), ``burst``, ``key``, ``for``
    (seconds, or ``"10m"``), ``why``, ``by``, and ``request``, which is the same for all receiving workers; or words
    such as ``why=...``. ``by``: the operator, if the arguments have none.
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


class Remote:
    """Answer the commands of `celery_throttle.control.panel`.

    ``hostname``: the worker's name in Celery. ``report`` returns the worker's own state; called on the gate's loop.
    """

    def __init__(self, app: Any, hostname: str, loop: Loop, report: Callable[[], dict[str, Any]]) -> None:
        self._app, self._hostname, self._loop, self._report = app, hostname, loop, report
        self._one_at_a_time = threading.Lock()

    def inspect(self) -> dict[str, Any]:
        """Return the versions of this worker, and its own state."""
        try:
            return {"versions": versions(), **self._loop.ask(self._report, _PATIENCE)}
        except NotInTime:
            return {"error": f"the gate of this worker is busy: no answer within {_PATIENCE:g} s"}

    def steer(self, command: str, arguments: Mapping[str, Any]) -> dict[str, str]:
        """Change a limit, in a thread, because a store that does not answer must not block the worker's tasks."""
        if not self._one_at_a_time.acquire(blocking=False):
            return {"error": "the store has not answered the last command yet: ask again in a second"}
        answer: Future[dict[str, str]] = Future()
        try:
            threading.Thread(
                target=self._carry_out, args=(answer, command, arguments), name="celery-throttle-control", daemon=True
            ).start()
        except RuntimeError:  # no thread can be started now
            self._one_at_a_time.release()
            raise
        try:
            return answer.result(_PATIENCE)
        except NotInTime:
            return {"error": f"the store did not answer within {_PATIENCE:g} s: it may be done or not, do it again"}

    def _carry_out(self, answer: Future[dict[str, str]], command: str, arguments: Mapping[str, Any]) -> None:
        try:
            done: Any = carry_out(self._app, command, arguments, by=f"celery control at {self._hostname}")
        except Exception as error:  # noqa: BLE001 - Celery reports it, as for its own commands
            done = error
        finally:
            self._one_at_a_time.release()  # before the answer, because its receiver may send the next command
        if isinstance(done, Exception):
            answer.set_exception(done)
        else:
            answer.set_result(done)


class RemoteStep(bootsteps.Step):
    """Add the answers to a worker that throttles."""

    requires = ("celery_throttle.worker.bootsteps:WorkerStep",)

    def include_if(self, worker: Any) -> bool:
        """Return whether the worker has the gate."""
        return hasattr(worker, "throttling")

    def create(self, worker: Any) -> None:
        """Register the commands, also in a process without the `celery` command, as with `app.Worker()`."""
        panel.register()
        throttling = worker.throttling
        worker.throttle_remote = Remote(worker.app, worker.hostname, throttling.loop, throttling.report)
