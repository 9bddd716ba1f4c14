"""What came of a change, for the page that follows it, once.

It is in a cookie, which no link of another site can set: a page claims nothing that an address makes up.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["forget", "leave", "left"]

_COOKIE = "celery_throttle_done"
#: Seconds that a browser has to ask for the page.
_LIFETIME = 60


def leave(request: Request, response: Response, location: str, done: str, count: int | None) -> None:
    """Leave for the page at a location what was done, and to how many.

    Args:
        request: that made the change.
        response: its answer.
        location: path and query of the page.
        done: the name of the change.
        count: to how many it was done, None if it does not count.
    """
    found = "" if count is None else str(count)
    response.set_cookie(_COOKIE, f"{done}.{found}.{_code(location)}", max_age=_LIFETIME, **_options(request))


def left(request: Request, location: str) -> tuple[str, str]:
    """Return what was done and to how many, as `leave` left it for this location; two empty texts if nothing was."""
    done, _, rest = request.cookies.get(_COOKIE, "").partition(".")
    count, _, code = rest.partition(".")
    return (done, count) if code == _code(location) else ("", "")


def forget(request: Request, response: Response) -> Response:
    """Have the browser forget it, once a page was made; return the answer."""
    if _COOKIE in request.cookies and request.query_params.get("part") != "live":
        response.delete_cookie(_COOKIE, **_options(request))
    return response


def _options(request: Request) -> dict[str, Any]:
    path, secure = request.scope.get("root_path", "") or "/", request.scope.get("scheme") == "https"
    return {"path": path, "secure": secure, "httponly": True, "samesite": "strict"}


def _code(location: str) -> str:
    return hashlib.sha256(location.encode()).hexdigest()[:32]
