"""Check the rights of each request, and add security headers to each answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request

from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    Rights = Literal["all", "change", "arguments", "read"]
    Access = Callable[[Request], Rights | Awaitable[Rights | None] | None]
    User = Callable[[Request], str | Awaitable[str | None] | None]

__all__ = ["Guard", "Visitor", "route_path", "visitor"]

_SAFE = ("GET", "HEAD")
_PORTS = {"http": 80, "https": 443}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: with it browsers that do not send Sec-Fetch-Site send the Origin "null".
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_VISITOR = "celery_throttle.visitor"
#: All include "read"; "all" is "change" and "arguments" together.
_RIGHTS = ("all", "change", "arguments", "read")


@dataclass(frozen=True)
class Visitor:
    """The sender of a request with its rights; ``by``: its name for the audit, None for ``user@host``."""

    rights: Rights
    by: str | None

    @property
    def may_change(self) -> bool:
        """Whether this visitor may make changes."""
        return self.rights in ("all", "change")

    @property
    def may_see_arguments(self) -> bool:
        """Whether this visitor may see the arguments of tasks."""
        return self.rights in ("all", "arguments")


def visitor(request: Request) -> Visitor:
    """Return the sender of a request that the guard let in."""
    found: Visitor = request.scope[_VISITOR]
    return found


def route_path(scope: Scope) -> str:
    """Return the path of a request below the page's own root, as Starlette's router compares it.

    Not ``request.url.path``, which before Starlette 1.0.1 begins with the ``Host`` header as it was sent.
    """
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    below = path[len(root) :]
    return below if path.startswith(root) and below[:1] in ("", "/") else path


class Guard:
    """Lets in requests that have the rights, and accepts changes only from the page's own origin.

    ``access`` and ``user``: see `celery_throttle.web.asgi`. ``refuse`` returns the answer to a refused request, given
    its status and the reason. ``open_paths``: route paths that every visitor may see; compared for equality. ``doors``:
    route paths to which every visitor may send a form of the page: to sign in and out.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access | None,
        user: User | None,
        refuse: Callable[[Request, int, str], Response],
        open_paths: tuple[str, ...] = (),
        doors: tuple[str, ...] = (),
    ) -> None:
        self._app, self._access, self._user, self._refuse = app, access, user, refuse
        self._open, self._doors = open_paths, doors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        request = Request(scope, receive)
        refused = await self._refused(request)
        answer = self._app if refused is None else await run_in_threadpool(self._refuse, request, *refused)
        await answer(scope, receive, protected)

    async def _refused(self, request: Request) -> tuple[int, str] | None:
        """Return status and reason for a request to refuse, else None; store the sender in the scope."""
        if self._is_open(request):
            return None
        try:
            rights: Any = "read" if self._access is None else await _asked(self._access, request)
        except HTTPException as error:
            return error.status_code, str(error.detail)
        if rights is None:
            return 401, "You may not see this page."
        if rights not in _RIGHTS:
            raise ConfigurationError(f"access() must return {', '.join(map(repr, _RIGHTS))} or None, got {rights!r}")
        sender = Visitor(rights, None)
        if request.method not in _SAFE and not _same_origin(request):
            return 403, "This request came from another site, or from a program that sends no Origin header."
        if request.method not in _SAFE and not sender.may_change:
            return 403, "You may read, but not change anything."
        by = None if self._user is None else await _asked(self._user, request)
        request.scope[_VISITOR] = replace(sender, by=by)
        return None

    def _is_open(self, request: Request) -> bool:
        path = route_path(request.scope)
        if request.method in _SAFE:
            return path in self._open
        return request.method == "POST" and path in self._doors and _same_origin(request)


async def _asked(function: Callable[[Request], Any], request: Request) -> Any:
    if iscoroutinefunction(function):
        return await function(request)
    return await run_in_threadpool(function, request)


def _same_origin(request: Request) -> bool:
    """Return whether a request comes from the page itself, or from a program that sends the token with it."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    if (origin := request.headers.get("origin")) is not None:
        return _is_host(origin, request.headers.get("host", ""))
    # Browsers never add this header on their own.
    return request.headers.get("authorization", "").lower().startswith("bearer ")


def _is_host(origin: str, host: str) -> bool:
    """Return whether an origin has this host and port; a missing port is the default of the scheme."""
    try:
        its, ours = urlsplit(origin), urlsplit(f"{origin.partition('://')[0]}://{host}")
        port = _PORTS.get(its.scheme)
        return bool(its.hostname) and (its.hostname, its.port or port) == (ours.hostname, ours.port or port)
    except ValueError:  # an invalid port
        return False
