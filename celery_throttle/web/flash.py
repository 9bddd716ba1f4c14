"""Keep the outcome of a change for the next page, which shows it once.

The outcome is in a cookie, because a link of another site cannot set one. An address cannot make a page show a notice.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["cookie_options", "forget", "leave", "left"]

_COOKIE = "celery_throttle_done"
#: Seconds in which the browser has to request the next page.
_LIFETIME = 60


def leave(request: Request, response: Response, location: str, done: str, count: int | None) -> None:
    """Leave the outcome of a change for the page at a location (path and query), in the answer to its request.

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
