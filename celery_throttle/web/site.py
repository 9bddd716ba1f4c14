"""The app of the page: its routes, behind the guard, and the head line of each page."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from zlib import crc32

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from celery_throttle.control.findings import Commands
from celery_throttle.core.store_url import shown
from celery_throttle.core.wording import counted
from celery_throttle.errors import ConfigurationError, StoreUnavailable
from celery_throttle.settings import settings_of
from celery_throttle.web.api import Api
from celery_throttle.web.changes import Changes
from celery_throttle.web.guard import Guard, route_path
from celery_throttle.web.pages import Pages
from celery_throttle.web.readings import Readings
from celery_throttle.web.rendering import asset, page

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from celery_throttle.control.checks import Report
    from celery_throttle.web.guard import Access, User
    from celery_throttle.web.tokens import Token

__all__ = ["Head", "site"]

_HEADINGS = {
    401: "Sign in",
    429: "Too many attempts",
    403: "Not allowed",
    404: "Not found",
    400: "Invalid request",
    503: "The store does not answer",
}
#: Seconds after which the alarms of a report are not shown any more.
_OLD = 60.0
#: Colours of the stylesheet, beside that of production.
_COLOURS = 4
_PRODUCTION = ("prod", "live")


class Head:
    """The content of the head line, without a call to the store.

    ``store``: its address without passwords; "" if a setting cannot work. ``group``: the prefix of all keys, with the
    name of the group of limits if there is one. ``environment``: its name, "" if there is none.
    """

    def __init__(self, app: Any, readings: Readings) -> None:
        self._verdict = readings.verdict
        self.app = str(app.main or "celery")
        self.store = self.group = self.environment = ""
        try:
            settings = settings_of(app)
        except ConfigurationError:  # the page itself shows the error
            return
        self.store, self.environment = shown(settings.url), settings.environment
        self.group = f"{settings.prefix}, group {settings.group}" if settings.group else settings.prefix

    @property
    def colour(self) -> str:
        """The class of the environment: red for production, another colour for other names."""
        name = self.environment.lower()
        return "production" if name.startswith(_PRODUCTION) else f"colour-{crc32(name.encode()) % _COLOURS}"

    @property
    def alarms(self) -> Report | None:
        """The last report, None if there is none or it is old."""
        return self._verdict.last(_OLD)

    @staticmethod
    def in_words(report: Report | None) -> str:
        """Return the number of alarms in words; no number where no report was read."""
        if report is None:
            return "check for alarms"
        if report.alarms:
            return counted(len(report.alarms), "alarm")
        return "no alarm, not all checked" if report.unchecked else "no alarm"


def site(
    app: Any, access: Access | None, user: User | None, command: str | Commands, door: Token | None = None
) -> ASGIApp:
    """Return the page of a Celery app; ``access`` and ``user``: see `celery_throttle.web.asgi`.

    ``command``: the beginning of commands. ``door`` signs visitors in with a token; None: another site does that.
    """
    commands = Commands(command) if isinstance(command, str) else command
    readings = Readings(app, commands)
    pages, api = Pages(app, readings), Api(app, readings)
    changes = Changes(app, commands, readings.forget)
    routes = [
        Route("/", pages.overview),
        Route("/limit", pages.limit),
        Route("/limit/change", changes.of_limit, methods=["GET", "POST"]),
        Route("/task", pages.task),
        Route("/task/drop", changes.of_task, methods=["GET", "POST"]),
        Route("/locks", pages.locks),
        Route("/locks/unlock", changes.of_lock, methods=["GET", "POST"]),
        Route("/audit", pages.audit),
        Route("/report", pages.report),
        Route("/workers", pages.workers),
        Route("/alarms", pages.alarms),
        Route("/metrics", api.metrics),
        *(Route(f"/api/{name}", answer) for name, answer in api.answers.items()),
        *(Route(f"/{name}", partial(asset, name)) for name in ("page.css", "page.js")),
        *(door.routes if door else ()),
    ]
    handlers = {
        StoreUnavailable: lambda request, error: _message(request, 503, str(error)),
        ConfigurationError: lambda request, error: _message(request, 400, str(error)),
        HTTPException: lambda request, error: _message(request, error.status_code, str(error.detail), error.headers),
    }
    inner = Starlette(routes=routes, exception_handlers=handlers)
    inner.state.head = Head(app, readings)
    refused = partial(_refused, sign_in=door is not None)
    return Guard(inner, access, user, refused, ("/page.css", "/page.js"), door.paths if door else ())


def _refused(request: Request, status: int, why: str, *, sign_in: bool) -> Response:
    if status != 401:  # noqa: PLR2004 - not signed in
        return _message(request, status, why)
    if not sign_in:
        return _message(request, 403, why)
    return _message(request, 401, "A token is needed to see this page.", {"WWW-Authenticate": "Bearer"})


def _asked_for(request: Request) -> str:
    """Return the path to show after signing in, without a token in its query."""
    if request.method == "POST":
        return request.query_params.get("next", "") if route_path(request.scope) == "/sign-in" else ""
    query = urlencode([each for each in request.query_params.multi_items() if each[0] != "token"])
    path = route_path(request.scope)
    return f"{path}?{query}" if query else path


def _message(request: Request, status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    if route_path(request.scope).startswith("/api/"):
        return JSONResponse({"error": text}, status, headers)
    heading = _HEADINGS.get(status, "Error")
    # The script repeats a GET only, so that no change is made twice.
    retry, asked_for = status == 503 and request.method == "GET", _asked_for(request)  # noqa: PLR2004
    answer = page(request, "message.html", code=status, heading=heading, text=text, asked_for=asked_for, retry=retry)
    answer.headers.update(headers or {})
    return answer
