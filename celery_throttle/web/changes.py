"""Pages that change something: a GET shows the effect and the command, a POST makes the change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from celery_throttle.control.outcomes import HEADINGS
from celery_throttle.control.throttle_control import ThrottleControl
from celery_throttle.control.verbs import DROP, DROPPABLE, VERBS, Verb
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.durations import read_duration
from celery_throttle.core.wording import counted
from celery_throttle.errors import ConfigurationError
from celery_throttle.web.asked import form, leave, left, limit_of, word
from celery_throttle.web.guard import route_path, visitor
from celery_throttle.web.rendering import link, page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from starlette.requests import Request

    from celery_throttle.control.findings import Commands
    from celery_throttle.control.limit_control import LimitControl
    from celery_throttle.control.what_if import Simulation
    from celery_throttle.store.limit_status import LimitStatus

__all__ = ["CHANGES", "Changes", "notice_of", "offered", "python"]

#: The changes to a limit, by name.
CHANGES = VERBS | {DROP.name: DROP}
_DROP_TASK = DROP._replace(help="The task does not run, and ends as revoked.")
_UNLOCK = Verb(
    "unlock", "unlock", "", "", "A running task goes on beside the next one, with the smaller fencing token."
)
#: The changes that end another one, the most likely first.
_ENDING = ("release-hold", "resume", "enable", "reset")
#: The fields of another load for a simulation.
_LOAD = ("arrivals", "run_time")
#: The default duration of a change.
_LASTS = "2h"


def offered(status: LimitStatus, waits: int, keys: Iterable[LimitStatus] = ()) -> list[tuple[Verb, Bucket]]:
    """Return the changes for a limit, or one key of it, in its present state, the most likely first.

    ``waits``: the number of parked tasks. ``keys``: the states of its keys: `release-hold` of a limit also ends the
    holds of its keys.
    """
    found: dict[tuple[str, Bucket], None] = {}
    for name in _ENDING:
        changes = (getattr(status, what) for what in VERBS[name].ends)
        found |= {(name, status.scope(each)): None for each in changes if each}
    if any(each.held_back for each in keys):
        found["release-hold", status.bucket] = None
    if not status.bucket.is_open:
        found |= dict.fromkeys((name, status.bucket) for name in ("pause", "set", "disable"))
    found |= {("drop", status.bucket): None} if waits else {}
    return [(CHANGES[name], bucket) for name, bucket in found]


def notice_of(request: Request, name: str = "", key: str | None = None) -> str:
    """Return the outcome of the change that led to this page, built from fixed texts, never from the cookie's."""
    done, count = left(request, link(request, route_path(request.scope).lstrip("/"), **request.query_params))
    bucket = str(Bucket(name, key))
    if done in ("drop", "unlock") and count.isdecimal():
        found = int(count[:9])
        if done == "drop":
            return f"{counted(found, 'task')} dropped."
        return "The lock is free." if found else "No task had the lock."
    if done not in VERBS:
        return ""
    return (VERBS[done].nothing if count == "0" else VERBS[done].done).format(bucket)


class Asked(NamedTuple):
    """The fields of a form as they were written: permits, rate, burst, duration and reason."""

    permits: str = ""
    rate: str = ""
    burst: str = ""
    lasts: str = ""
    why: str = ""


class Changes:
    """Makes changes; each method answers a request.

    ``changed`` is called after each change, also after one with an unknown outcome.
    """

    def __init__(self, app: Any, commands: Commands, changed: Callable[[], None]) -> None:
        self._app, self._commands, self._throttle, self._changed = app, commands, ThrottleControl(app), changed

    async def of_limit(self, request: Request) -> Response:
        """Change a limit, or one key of it; a GET shows the effect of the change."""
        return await self._answer(request, self._show_limit, self._change_limit)

    async def of_task(self, request: Request) -> Response:
        """Drop one parked task."""
        return await self._answer(request, self._show_task, self._drop_task)

    async def of_lock(self, request: Request) -> Response:
        """Take an identity lock away."""
        return await self._answer(request, self._show_lock, self._unlock)

    async def _answer(
        self,
        request: Request,
        show: Callable[..., Response],
        change: Callable[[Request, Mapping[str, str]], Response],
    ) -> Response:
        if not visitor(request).may_change:
            raise HTTPException(403, "You may read, but not change anything.")
        if request.method != "POST":
            return await run_in_threadpool(show, request, request.query_params)
        fields = await form(request)
        try:
            return await run_in_threadpool(change, request, fields)
        except ConfigurationError as error:
            return await run_in_threadpool(show, request, fields, str(error))
        finally:
            self._changed()

    # -- a limit -------------------------------------------------------------------------------------------------------

    def _show_limit(self, request: Request, form: Mapping[str, str], error: str = "") -> Response:
        limit, command, asked = limit_of(self._app, request), _command(form), _asked(form)
        if command.permits and not {"permits", "rate"} & form.keys():  # the form was not filled in yet
            asked = _as_it_is(limit.status(), asked)
        if command.lasts and not {"for", "ever"} & form.keys() and request.method != "POST":
            asked = asked._replace(lasts=_LASTS)
        would: list[str] = []
        try:
            options = _options(command, asked)
            if not error:
                would = self._would(limit, command, options)
        except ConfigurationError as wrong:
            options, error = {}, error or str(wrong)
        found = None if error or not form.get("simulate") else _simulated(limit, form, options)
        copied = None if error else self._copied(limit, command, asked, options)
        about = {**_of(limit), "change": command.name}
        heading, back = f"{command.label}: {Bucket(limit.name, limit.key)}", link(request, "limit", **_of(limit))
        load = {name: form.get(name, "") for name in _LOAD}
        return _page(request, command, heading, asked, error, copied, about, back, would, load=load, simulated=found)

    @staticmethod
    def _would(limit: LimitControl, command: Verb, options: dict[str, Any]) -> list[str]:
        if command.name == "drop":
            return [f"{counted(limit.drop(dry_run=True), 'task')} would be dropped."]
        if command.permits:
            return str(limit.forecast(**_numbers(options))).split("\n")
        if command.ends:
            after: Any = command.name
            return str(limit.forecast(after=after)).split("\n")
        return [f"State now: {limit.status()}."]

    def _copied(self, limit: LimitControl, command: Verb, asked: Asked, options: dict[str, Any]) -> dict[str, str]:
        bucket, (values, others) = Bucket(limit.name, limit.key), _in_python(options)
        paces = _parts(asked.rate, "rate") + _parts(asked.burst, "burst") if command.permits else []
        flags: list[tuple[str, str | None]] = [("yes", None)] if command.name == "drop" else []
        given = [*paces, ("for", asked.lasts if command.lasts else ""), ("why", asked.why), *flags]
        return {
            "shell": self._commands.throttle(command.name, bucket, *map(str, values), options=given),
            "python": python(bucket, command.method, *values, **others, why=asked.why),
        }

    def _change_limit(self, request: Request, form: Mapping[str, str]) -> Response:
        limit, command, asked = limit_of(self._app, request), _command(form), _asked(form)
        changed = getattr(limit, command.method)(**_options(command, asked), by=visitor(request).by, why=asked.why)
        count = None if changed is None else int(changed)
        return _seen(request, "limit", command.name, count, **_of(limit))

    # -- a task, a lock ------------------------------------------------------------------------------------------------

    def _show_task(self, request: Request, form: Mapping[str, str], error: str = "") -> Response:
        task, asked = word(request, "id"), _asked(form)
        copied = {
            "shell": self._commands.throttle("drop", options=[("why", asked.why), ("task", task), ("yes", None)]),
            "python": python(None, "drop", task, why=asked.why),
        }
        explanation = self._throttle.explain(task)
        can = explanation.state in DROPPABLE
        error = error or ("" if can else f"The task is not parked: {explanation.state}.")
        back = link(request, "task", id=task)
        return _page(request, _DROP_TASK, f"Drop task {task}", asked, error, copied, {"id": task}, back)

    def _drop_task(self, request: Request, form: Mapping[str, str]) -> Response:
        task = word(request, "id")
        dropped = self._throttle.drop(task, by=visitor(request).by, why=_asked(form).why)
        return _seen(request, "task", "drop", int(dropped), id=task)

    def _show_lock(self, request: Request, form: Mapping[str, str], error: str = "") -> Response:
        identity, asked, name = word(request, "identity"), _asked(form), request.query_params.get("task", "")
        copied = {
            "shell": self._commands.throttle("unlock", options=[("why", asked.why), ("identity", identity)]),
            "python": python(None, "unlock", identity, task_name=name, why=asked.why),
        }
        about = {"identity": identity, "task": name or None}
        heading, back = f"Unlock {name or identity}", link(request, "locks")
        return _page(request, _UNLOCK, heading, asked, error, copied, about, back)

    def _unlock(self, request: Request, form: Mapping[str, str]) -> Response:
        identity, name = word(request, "identity"), request.query_params.get("task", "")
        by, why = visitor(request).by, _asked(form).why
        unlocked = self._throttle.unlock(identity, task_name=name, by=by, why=why)
        return _seen(request, "locks", "unlock", int(unlocked))


def _page(
    request: Request,
    verb: Verb,
    heading: str,
    asked: Asked,
    error: str,
    copied: dict[str, str] | None,
    about: dict[str, str | None],
    back: str,
    would: Sequence[str] = (),
    **simulation: object,
) -> Response:
    """Return the form of a change."""
    return page(
        request, "change.html", code=400 if error else 200, heading=heading, command=verb, would=would, error=error,
        copied=None if error else copied, asked=asked, lasts=_LASTS, about=about, back=back,
        headings=HEADINGS, **{"simulated": None, "load": {}} | simulation,
    )  # fmt: skip


def _simulated(limit: LimitControl, form: Mapping[str, str], options: dict[str, Any]) -> Simulation | str:
    """Return the simulation of these numbers, or the reason why there is none."""
    load: dict[str, Any] = {name: form[name].strip() for name in _LOAD if form.get(name, "").strip()}
    try:
        return limit.simulate(**_numbers(options) | load)
    except ConfigurationError as error:
        return str(error)


def _numbers(options: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in options.items() if name != "until"}


def _of(limit: LimitControl) -> dict[str, str | None]:
    return {"name": limit.name, "key": limit.key}


def _command(form: Mapping[str, str]) -> Verb:
    if form.get("change") not in CHANGES:
        raise HTTPException(400, f"?change= is one of {', '.join(CHANGES)}")
    return CHANGES[form["change"]]


def _asked(form: Mapping[str, str]) -> Asked:
    asked = Asked(*(form.get(name, "").strip() for name in ("permits", "rate", "burst", "for", "why")))
    return asked._replace(lasts="") if form.get("ever") else asked


def _as_it_is(status: LimitStatus, asked: Asked) -> Asked:
    """Return the values that the form of an override begins with: those in force."""
    if status.in_force is not None or not status.rates_in_force:
        return asked._replace(permits=str(status.in_force or 1))
    rates = status.rates_in_force
    return asked._replace(
        rate=", ".join(each.rate for each in rates), burst=", ".join(str(each.burst) for each in rates)
    )


def _parts(text: str, name: str) -> list[tuple[str, str]]:
    """Return one option for each value in a list: ``10/s, 5000/h``."""
    return [(name, each.strip()) for each in text.split(",") if each.strip()]


def _options(command: Verb, asked: Asked) -> dict[str, Any]:
    """Return the arguments for the method of a change, without author and reason."""
    options: dict[str, Any] = {}
    if command.permits and asked.permits:
        options["permits"] = _number("Permits", asked.permits)
    rates = [each for _, each in _parts(asked.rate, "rate")] if command.permits else []
    bursts = [_number("Burst", each) for _, each in _parts(asked.burst, "burst")] if command.permits else []
    if rates:
        options["rate"] = rates[0] if len(rates) == 1 else rates
    if bursts:
        options["burst"] = bursts[0] if len(bursts) == 1 else bursts
    if command.lasts and asked.lasts:
        options["until"] = read_duration(asked.lasts)
    return options


def _number(what: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):  # noqa: PLR2004 - 999999999 is the most
        fix = f": write it as the rate, {text}" if "/" in text else ""
        raise ConfigurationError(f"{what} must be a whole number of 1 or more, got {text!r}{fix}")
    return int(text)


def _in_python(options: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """Return the arguments by place and by name; ``until`` in seconds, which need no import."""
    others = {name: each for name, each in options.items() if name != "permits"}
    if "until" in others:
        seconds = others["until"].total_seconds()
        others["until"] = int(seconds) if seconds.is_integer() else seconds
    return [options["permits"]] if "permits" in options else [], others


def _seen(request: Request, path: str, done: str, count: int | None, /, **query: object) -> Response:
    """Redirect to the page that shows the change, so that a reload does not repeat the change."""
    location = link(request, path, **query)
    response = RedirectResponse(location, status_code=303)
    leave(request, response, location, done, count)
    return response


def python(bucket: Bucket | None, method: str, *values: object, **options: object) -> str:
    """Return the same change in Python, given the app."""
    given = [*map(repr, values), *(f"{name}={value!r}" for name, value in options.items() if value not in ("", None))]
    key = "" if bucket is None or bucket.key is None else f", key={bucket.key!r}"
    limit = "" if bucket is None else f".limit({bucket.name!r}{key})"
    return f"ThrottleControl(app){limit}.{method}({', '.join(given)})"
