"""Sign visitors in with one token, for a page that has no other site in front of it."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from time import monotonic
from typing import TYPE_CHECKING, Literal, TypeVar
from urllib.parse import parse_qsl, quote

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from celery_throttle.core.wording import one_line, span
from celery_throttle.web.asked import cookie_options, form
from celery_throttle.web.rendering import SIGNED_IN, link

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["Token"]

T = TypeVar("T")

logger = logging.getLogger(__name__)

_COOKIE = "celery_throttle"
#: Length of a session in seconds.
_LIFETIME = 12 * 3600
#: Most sessions, and most addresses with wrong tokens, that are kept.
_MOST = 1000
#: Wrong tokens of one address before it has to pause, and the pause in seconds after each further one.
_FREE, _PAUSE = 5, 30.0


class Token:
    """Lets in requests with the token: programs in ``Authorization: Bearer``, browsers once, by POST, for a session.

    All methods run on the event loop, so there is no lock. Every visitor may POST to ``paths``.
    """

    paths = ("/sign-in", "/sign-out")

    def __init__(self, token: str, rights: Literal["all", "read"]) -> None:
        self._token, self._rights = token, rights
        self._sessions: dict[str, float] = {}
        self._wrong: dict[str, tuple[int, float]] = {}

    @property
    def routes(self) -> list[Route]:
        """The routes for `paths`."""
        return [
            Route("/sign-in", self.sign_in, methods=["GET", "POST"]),
            Route("/sign-out", self.sign_out, methods=["POST"]),
        ]

    async def access(self, request: Request) -> Literal["all", "read"] | None:
        """Return the rights of a request, as the ``access`` of `celery_throttle.web.asgi`."""
        if self._sessions.get(_name_of(request), 0.0) > monotonic():
            request.scope[SIGNED_IN] = True
            return self._rights
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        return self._rights if scheme.lower() == "bearer" and self._is_right(request, sent.strip()) else None

    async def sign_in(self, request: Request) -> Response:
        """Begin a session, and redirect to the page that was requested first."""
        path, _, query = request.query_params.get("next", "").partition("?")
        # Always a path below the page's own root, so that the redirect stays on this host.
        response = RedirectResponse(
            link(request, quote(path.lstrip("/")), **dict(parse_qsl(query, keep_blank_values=True))), 303
        )
        if request.method == "POST":
            if not self._is_right(request, (await form(request)).get("token", "")):
                raise HTTPException(401, "This is not the token.", {"WWW-Authenticate": "Bearer"})
            response.set_cookie(_COOKIE, self._begin(), max_age=_LIFETIME, **cookie_options(request))
        return response

    async def sign_out(self, request: Request) -> Response:
        """End the session."""
        self._sessions.pop(_name_of(request), None)
        response = RedirectResponse(link(request, ""), 303)
        response.set_cookie(_COOKIE, "", max_age=0, **cookie_options(request))
        return response

    def _begin(self) -> str:
        session, now = secrets.token_urlsafe(), monotonic()
        self._sessions = {name: until for name, until in self._sessions.items() if until > now}
        _add(self._sessions, _hashed(session), now + _LIFETIME)
        return session

    def _is_right(self, request: Request, sent: str) -> bool:
        """Return whether this is the token; while an address has to pause, nothing is compared.

        `HTTPException` if the address has sent too many wrong tokens.
        """
        address, now = request.client.host if request.client else "", monotonic()
        count, until = self._wrong.get(address, (0, 0.0))
        if until > now:
            raise HTTPException(429, f"Too many wrong tokens: try again in {span(until - now)}.")
        if hmac.compare_digest(sent.encode(), self._token.encode()):
            self._wrong.pop(address, None)
            return True
        count += 1
        _add(self._wrong, address, (count, now + _PAUSE if count >= _FREE else 0.0))
        logger.warning("celery_throttle: wrong token from %s, %d in a row", one_line(address) or "unknown", count)
        return False


def _name_of(request: Request) -> str:
    return _hashed(request.cookies.get(_COOKIE, ""))


def _hashed(session: str) -> str:
    """Return the hash by which a session is kept, so that the time of a lookup reveals nothing of the session."""
    return hashlib.sha256(session.encode("utf-8", "surrogatepass")).hexdigest()


def _add(kept: dict[str, T], name: str, value: T) -> None:
    kept.pop(name, None)  # so that it becomes the last in the order
    while len(kept) >= _MOST:
        del kept[next(iter(kept))]
    kept[name] = value
