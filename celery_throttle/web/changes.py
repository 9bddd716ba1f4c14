"""What changes something: first what it would do, and the same as commands; then, by POST, the change itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from celery_throttle.control.limit_control import NOTHING_TO_DO
from celery_throttle.control.throttle_control import ThrottleControl
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.durations import duration
from celery_throttle.core.wording import counted
from celery_throttle.errors import ConfigurationError
from celery_throttle.web.asked import form, limit_of, word
from celery_throttle.web.commands import Asked, Command, Copied, python, shell
from celery_throttle.web.flash import leave, left
from celery_throttle.web.guard import route_path, visitor
from celery_throttle.web.rendering import link, page

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta

    from starlette.requests import Request

    from celery_throttle.control.findings import Commands
    from celery_throttle.control.limit_control import LimitControl

__all__ = ["CHANGES", "DROPPABLE", "Changes", "said"]

#: The states of tasks that can be dropped.
DROPPABLE = ("parked", "waiting for its identity lock")
_COMMANDS = (
    Command("set", "override", "Override", "Have another number of permits for now.", permits=True, lasts=True),
    Command("reset", "reset", "Reset", "End an override: the code's number holds again."),
    Command("pause", "pause", "Pause", "Let nothing start; what runs goes on, what arrives is parked.", lasts=True),
    Command("resume", "resume", "Resume", "End a pause: what waits starts, as far as there is room."),
    Command("disable", "disable", "Disable", "Enforce nothing: all that waits starts at once.", lasts=True),
    Command("enable", "enable", "Enable", "Enforce the limit again; what runs goes on."),
    Command("release-hold", "release_hold", "Release hold", "Let start at once what a RateLimited holds back."),
    Command("drop", "drop", "Drop", "Let all who wait now not run: they end as revoked."),
)
#: What can be done to a limit, by name.
CHANGES = {each.name: each for each in _COMMANDS}
_DONE = {
    "set": "{} is overridden.",
    "reset": "The override of {} has ended.",
    "pause": "{} is paused.",
    "resume": "{} goes on.",
    "disable": "{} is not enforced any more.",
    "enable": "{} is enforced again.",
    "release-hold": "{} is not held back any more.",
}


def said(request: Request, name: str = "", key: str | None = None) -> str:
    """Return what came of the change that led to this page, in words that are known, never as sent."""
    done, count = left(request, link(request, route_path(request.scope).lstrip("/"), **request.query_params))
    bucket = str(Bucket(name, key))
    if done in ("drop", "unlock") and count.isdecimal():
        found = int(count[:9])
        if done == "drop":
            return f"{counted(found, 'task')} dropped."
        return "The lock is free." if found else "Nobody had the lock."
    if done not in _DONE:
        return ""
    method = CHANGES[done].method
    return (NOTHING_TO_DO[method] if count == "0" and method in NOTHING_TO_DO else _DONE[done]).format(bucket)


class Changes:
    """Makes changes; each method answers a request.

    Args:
        app: the Celery app.
        commands: how commands begin.
        changed: to be called after each, also after one of which nobody knows what came of it.
    """

    def __init__(self, app: Any, commands: Commands, changed: Callable[[], None]) -> None:
        self._app, self._commands, self._throttle, self._changed = app, commands, ThrottleControl(app), changed

    async def of_limit(self, request: Request) -> Response:
        """Change a limit, or one key of it; a GET says what that would do."""
        return await self._answer(request, self._show_limit, self._change_limit)

    async def of_task(self, request: Request) -> Response:
        """Drop one task that waits."""
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
        if visitor(request).rights != "all":
            raise HTTPException(403, "You may look, and change nothing.")
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
        if command.permits and "permits" not in form:  # nobody has said a number yet
            in_force = limit.status().in_force
            asked = asked._replace(permits="1" if in_force is None else str(in_force))
        would: list[str] = []
        try:
            values, options = _options(command, asked)
            if not error:
                would = self._would(limit, command, values)
        except ConfigurationError as wrong:
            values, options, error = [], {}, error or str(wrong)
        return page(
            request,
            "change.html",
            code=400 if error else 200,
            heading=f"{command.label}: {Bucket(limit.name, limit.key)}",
            does=command.does,
            would=would,
            error=error,
            copied=None if error else self._copied(limit, command, asked, values, options),
            command=command,
            asked=asked,
            about={"name": limit.name, "key": limit.key, "change": command.name},
            back=link(request, "limit", name=limit.name, key=limit.key),
        )

    @staticmethod
    def _would(limit: LimitControl, command: Command, values: list[int]) -> list[str]:
        if command.name == "drop":
            return [f"{counted(limit.drop(dry_run=True), 'task')} would be dropped."]
        if command.permits:
            return str(limit.forecast(values[0])).split("\n")
        return [f"Now it stands so: {limit.status()}."]

    def _copied(
        self, limit: LimitControl, command: Command, asked: Asked, values: list[int], options: dict[str, Any]
    ) -> Copied:
        bucket = Bucket(limit.name, limit.key)
        given = [("key", bucket.key), ("for", asked.lasts if command.lasts else ""), ("why", asked.why)]
        flags = [("yes", "")] if command.name == "drop" else []
        return Copied(
            self._shell(command.name, [*((name, value) for name, value in given if value), *flags],
                        [bucket.name, *map(str, values)]),
            python(bucket, command.method, *values, **_in_python(options), why=asked.why),
        )  # fmt: skip

    def _shell(self, command: str, options: list[tuple[str, str]], values: list[str]) -> str:
        begin, common = self._commands
        pairs = list(zip((each.removeprefix("--") for each in common[::2]), common[1::2], strict=True))
        return shell(begin, command, [*pairs, *options], values)

    def _change_limit(self, request: Request, form: Mapping[str, str]) -> Response:
        limit, command, asked = limit_of(self._app, request), _command(form), _asked(form)
        values, options = _options(command, asked)
        changed = getattr(limit, command.method)(*values, **options, by=visitor(request).by, why=asked.why)
        count = None if changed is None else int(changed)
        return _seen(request, "limit", command.name, count, name=limit.name, key=limit.key)

    # -- a task, a lock ------------------------------------------------------------------------------------------------

    def _show_task(self, request: Request, form: Mapping[str, str], error: str = "") -> Response:
        task, asked = word(request, "id"), _asked(form)
        copied = Copied(
            self._shell("drop", [*_why(asked), ("task", task), ("yes", "")], []),
            python(None, "drop", task, why=asked.why),
        )
        explanation = self._throttle.explain(task)
        can = explanation.state in DROPPABLE
        error = error or ("" if can else f"It is not parked: {explanation.state}.")
        does = "It does not run: it ends as revoked."
        back = link(request, "task", id=task)
        return self._show_other(request, f"Drop task {task}", does, error, copied, asked, back, {"id": task})

    def _drop_task(self, request: Request, form: Mapping[str, str]) -> Response:
        task = word(request, "id")
        dropped = self._throttle.drop(task, by=visitor(request).by, why=_asked(form).why)
        return _seen(request, "task", "drop", int(dropped), id=task)

    def _show_lock(self, request: Request, form: Mapping[str, str], error: str = "") -> Response:
        identity, asked, name = word(request, "identity"), _asked(form), request.query_params.get("task", "")
        copied = Copied(
            self._shell("unlock", [*_why(asked), ("identity", identity)], []),
            python(None, "unlock", identity, task_name=name, why=asked.why),
        )
        does = "A task that runs goes on, beside the next one: its fencing token is the smaller."
        back = link(request, "locks")
        about = {"identity": identity, "task": name or None}
        return self._show_other(request, f"Unlock {name or identity}", does, error, copied, asked, back, about)

    def _unlock(self, request: Request, form: Mapping[str, str]) -> Response:
        identity, name = word(request, "identity"), request.query_params.get("task", "")
        by, why = visitor(request).by, _asked(form).why
        unlocked = self._throttle.unlock(identity, task_name=name, by=by, why=why)
        return _seen(request, "locks", "unlock", int(unlocked))

    @staticmethod
    def _show_other(
        request: Request,
        heading: str,
        does: str,
        error: str,
        copied: Copied,
        asked: Asked,
        back: str,
        about: dict[str, str | None],
    ) -> Response:
        code, label = (400 if error else 200), heading.partition(" ")[0]
        command = Command(label.lower(), "", label, does)
        return page(
            request, "change.html", code=code, heading=heading, does=does, would=[], error=error,
            copied=None if error else copied, command=command, asked=asked, back=back, about=about,
        )  # fmt: skip


def _command(form: Mapping[str, str]) -> Command:
    if form.get("change") not in CHANGES:
        raise HTTPException(400, f"?change= is one of {', '.join(CHANGES)}")
    return CHANGES[form["change"]]


def _asked(form: Mapping[str, str]) -> Asked:
    return Asked(form.get("permits", "").strip(), form.get("for", "").strip(), form.get("why", "").strip())


def _options(command: Command, asked: Asked) -> tuple[list[int], dict[str, Any]]:
    """Return what the method of a change takes, but for who and why."""
    if command.permits and not (asked.permits.isascii() and asked.permits.isdecimal() and len(asked.permits) < 10):  # noqa: PLR2004 - 999999999 is the most
        raise ConfigurationError(f"Permits must be a whole number of 1 or more, got {asked.permits!r}")
    options: dict[str, timedelta] = {}
    if command.lasts and asked.lasts:
        length = duration(asked.lasts)
        if length is None:
            raise ConfigurationError(f"{asked.lasts!r} is no duration: write 90s, 10m, 2h, 1d or 1h30m")
        options["until"] = length
    return [int(asked.permits)] if command.permits else [], options


def _in_python(options: dict[str, timedelta]) -> dict[str, float]:
    """Return the same with seconds, which need no import."""
    return {
        name: int(each.total_seconds()) if each.total_seconds().is_integer() else each.total_seconds()
        for name, each in options.items()
    }


def _why(asked: Asked) -> list[tuple[str, str]]:
    return [("why", asked.why)] if asked.why else []


def _seen(request: Request, path: str, done: str, count: int | None, /, **query: object) -> Response:
    """Go on to where the change is seen; reloading that makes it no second time."""
    location = link(request, path, **query)
    response = RedirectResponse(location, status_code=303)
    leave(request, response, location, done, count)
    return response
