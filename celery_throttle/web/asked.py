"""Read what a request brings: its query, its form, and the outcome of the change that led to it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException

from celery_throttle.control.throttle_control import ThrottleControl, as_shown
from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from celery_throttle.control.limit_control import LimitControl

__all__ = ["cookie_options", "forget", "form", "leave", "left", "limit_of", "most_of", "page_of", "word"]

#: The size of a form.
_MOST_BYTES = 16_384
#: Has the outcome of a change for the next page.
_COOKIE = "celery_throttle_done"
#: Seconds in which the browser has to request the next page.
_LIFETIME = 60


async def form(request: Request) -> dict[str, str]:
    """Return the fields of a form as browsers send them."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            raise HTTPException(413, "This is too long.")
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


def word(request: Request, name: str) -> str:
    """Return a required part of the query."""
    value = request.query_params.get(name, "")
    if not value:
        raise HTTPException(400, f"?{name}= is missing")
    return value


def most_of(request: Request, default: int) -> int:
    """Return the number of rows that the request asks for."""
    return _number(request, "most", default, 1000)


def page_of(request: Request) -> int:
    """Return the number of the page that the request asks for, 1 for the first; at most 20 000 keys are read."""
    return _number(request, "page", 1, 9999)


def _number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or len(text) > len(str(most)) or not 1 <= int(text) <= most:
        raise HTTPException(400, f"?{name}= is a whole number from 1 to {most}")
    return int(text)


def limit_of(app: Any, request: Request) -> LimitControl:
    """Return the limit, or the key of it, that ``?name=`` and ``?key=`` name; ``?name=`` may also be ``name[key]``."""
    throttle = ThrottleControl(app)
    try:
        name, key = as_shown(throttle, word(request, "name"), request.query_params.get("key"))
        return throttle.limit(name, key=key)
    except ConfigurationError as error:
        raise HTTPException(404, str(error)) from error


def leave(request: Request, response: Response, location: str, done: str, count: int | None) -> None:
    """Leave the outcome of a change for the page at a location (path and query), which shows it once.

    The outcome is in a cookie, because a link of another site cannot set one. An address cannot make a page show a
    notice.

    ``count``: the number of things that were changed, None if there is no number.
    """
    found = "" if count is None else str(count)
    response.set_cookie(_COOKIE, f"{done}.{found}.{_code(location)}", max_age=_LIFETIME, **cookie_options(request))


def left(request: Request, location: str) -> tuple[str, str]:
    """Return the name and the count that `leave` left for this location; two empty texts if there is no outcome."""
    done, _, rest = request.cookies.get(_COOKIE, "").partition(".")
    count, _, code = rest.partition(".")
    return (done, count) if code == _code(location) else ("", "")


def forget(request: Request, response: Response) -> Response:
    """Delete the cookie once a whole page was made; return the answer."""
    if _COOKIE in request.cookies and request.query_params.get("part") != "live":
        response.delete_cookie(_COOKIE, **cookie_options(request))
    return response


def cookie_options(request: Request) -> dict[str, Any]:
    """Return the options of a cookie that only the page itself gets back."""
    path, secure = request.scope.get("root_path", "") or "/", request.scope.get("scheme") == "https"
    return {"path": path, "secure": secure, "httponly": True, "samesite": "strict"}


def _code(location: str) -> str:
    return hashlib.sha256(location.encode()).hexdigest()[:32]
