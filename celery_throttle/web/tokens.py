"""The page behind one token, where no other site knows who its visitors are."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Literal
from urllib.parse import parse_qsl, quote, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["Hosts", "Token"]

_COOKIE = "celery_throttle"
_A_DAY = 86400


class Token:
    """Knows who has the token: in ``Authorization: Bearer``, or once as ``?token=``, which is swapped for a cookie.

    Args:
        token: the secret.
        rights: what who has it may do.
    """

    def __init__(self, token: str, rights: Literal["all", "read"]) -> None:
        self._token, self._rights = token, rights
        # Of the token, not the token: who sees the cookie cannot send it as the other.
        self._cookie = hmac.new(token.encode(), b"celery_throttle cookie", hashlib.sha256).hexdigest()

    def access(self, request: Request) -> Literal["all", "read"] | None:
        """As `celery_throttle.web.asgi` wants it."""
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        known = scheme.lower() == "bearer" and _same(sent.strip(), self._token)
        return self._rights if known or _same(request.cookies.get(_COOKIE, ""), self._cookie) else None

    def in_front_of(self, app: ASGIApp) -> ASGIApp:
        """Return the app behind what swaps ``?token=`` for the cookie."""

        async def swap(scope: Scope, receive: Receive, send: Send) -> None:
            answer = app
            if scope["type"] == "http" and scope["method"] == "GET":
                answer = self._swapped(Request(scope)) or app
            await answer(scope, receive, send)

        return swap

    def _swapped(self, request: Request) -> RedirectResponse | None:
        query = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if not any(name == "token" and _same(value, self._token) for name, value in query):
            return None
        rest = urlencode([each for each in query if each[0] != "token"])
        # A path alone, so that it stays on the host that was asked; "//" would begin the name of another one.
        path = "/" + quote(request.scope["path"].lstrip("/"))
        response = RedirectResponse(f"{path}?{rest}" if rest else path, status_code=303)
        secure = request.scope["scheme"] == "https"
        response.set_cookie(
            _COOKIE, self._cookie, max_age=_A_DAY, path="/", secure=secure, httponly=True, samesite="strict"
        )
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cache-Control"] = "no-store"
        return response


class Hosts:
    """Answers only who asks for one of these hosts: a name that another site has made point here is none of them.

    Args:
        app: what is behind it.
        hosts: their names, without ports.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http" and self._host(scope) not in self._hosts:
            await send({"type": "http.response.start", "status": 421, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"This page has another host name.\n"})
            return
        await self._app(scope, receive, send)

    @staticmethod
    def _host(scope: Scope) -> str:
        host: str = Request(scope).headers.get("host", "")
        bare = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        return bare.strip("[]").lower()


def _same(sent: str, known: str) -> bool:
    """Compare in a time that tells nothing."""
    return hmac.compare_digest(sent.encode(), known.encode())
