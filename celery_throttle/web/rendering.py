"""Render pages: templates that escape all values, links that work behind any prefix."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timedelta, timezone
from functools import lru_cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

from celery_throttle.core.buckets import Bucket
from celery_throttle.core.naming import is_outside
from celery_throttle.core.wording import at, counted, one_line, span
from celery_throttle.web.charts import SPARK_HEIGHT, outline
from celery_throttle.web.guard import route_path, visitor

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["SIGNED_IN", "asset", "link", "live", "page", "version"]

#: Key in the scope of a request whose sender has signed in with the token, and may sign out.
SIGNED_IN = "celery_throttle.signed_in"
#: Parts that change with time alone: the time, and the text of each moment. One expression for both takes five times as
#: long.
_NOW, _MOMENT = re.compile(r'data-now="[^"]*"'), re.compile(r"(<time [^>]*>)[^<]*")
_ASSETS = {"page.css": "text/css", "page.js": "text/javascript"}


def link(request: Request, path: str, /, **query: object) -> str:
    """Return a link within the page, below the path where it is mounted; query values of None are left out."""
    given = urlencode({name: value for name, value in query.items() if value is not None})
    root = quote(request.scope.get("root_path", "").rstrip("/"))
    return f"{root}/{path}?{given}" if given else f"{root}/{path}"


def page(request: Request, template: str, *, code: int = 200, **values: Any) -> HTMLResponse:
    """Return a page of a template."""
    return HTMLResponse(_html(request, template, values | {"code": code}), code)


def live(request: Request, template: str, **values: Any) -> Response:
    """Return a page with a part that the script reloads, or with ``?part=live`` that part alone."""
    html = _html(request, f"_{template}.html", values)
    still = hashlib.sha256(_NOW.sub("", _MOMENT.sub(r"\1", html)).encode()).hexdigest()
    etag = f'W/"{still[:32]}"'
    if request.query_params.get("part") != "live":
        return page(request, f"{template}.html", part=Markup(html), etag=etag, **values)  # noqa: S704 - of a template
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers={"ETag": etag})
    return HTMLResponse(html, headers={"ETag": etag})


def asset(name: str, _: Request) -> Response:
    """Return the stylesheet or the script."""
    return Response(_read(name), media_type=_ASSETS[name], headers={"Cache-Control": "public, max-age=86400"})


@lru_cache
def version() -> str:
    """Return a hash of the stylesheet and the script, for their links."""
    return hashlib.sha256("".join(map(_read, _ASSETS)).encode()).hexdigest()[:12]


@lru_cache
def _read(name: str) -> str:
    return (files("celery_throttle.web") / "static" / name).read_text(encoding="utf-8")


def _html(request: Request, template: str, values: dict[str, Any]) -> str:
    query = dict(request.query_params) | {"part": "live"}
    here = link(request, route_path(request.scope).lstrip("/"), **query)
    let_in = "celery_throttle.visitor" in request.scope
    names = {"link": partial(link, request), "here": here, "version": version()}
    names["limit_link"] = lambda name, key=None: link(request, "limit", name=name, key=key)
    names["worker_link"] = lambda name: f"{link(request, 'workers')}#{quote(worker_row(name))}"
    names["may_change"] = let_in and visitor(request).may_change
    names["may_see_arguments"] = let_in and visitor(request).may_see_arguments
    names["signed_in"] = request.scope.get(SIGNED_IN, False)
    names["head"] = request.app.state.head if let_in else None  # the address of the store is for visitors with rights
    now = values.get("now") or datetime.now(timezone.utc)
    return _environment().get_template(template).render(**names, **values | {"now": now})


@lru_cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("celery_throttle.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    made.globals |= {"ago": _ago, "left": _left, "Bucket": Bucket, "after": _after}
    made.globals |= {"is_outside": is_outside, "worker_row": worker_row}
    made.globals |= {"outline": outline, "spark_height": SPARK_HEIGHT}
    made.filters |= {"span": span, "at": at, "counted": counted, "number": _number}
    return made


def _shown(value: Any) -> Any:
    """Escape characters that are not printable, because they may reverse or end a line."""
    if isinstance(value, Markup):
        return value
    text = str(value)
    return text if text.isprintable() else one_line(text)


def worker_row(name: str) -> str:
    """Return the HTML id of the row of a worker."""
    return f"worker-{name}"


def _number(value: int) -> Markup:
    """Return a number with groups of digits: ``1 240``, with blanks that do not break."""
    return Markup(f"{value:,}".replace(",", "&nbsp;"))  # noqa: S704 - of digits


def _ago(moment: datetime, now: datetime) -> Markup:
    """Return the time since a moment, which the script keeps up to date."""
    text = span(max((now - moment).total_seconds(), 0))
    return Markup('<time data-ago datetime="{}" title="since {}">{}</time>').format(_iso(moment), at(moment), text)


def _left(moment: datetime, now: datetime) -> Markup:
    """Return the time until a moment."""
    text = span(max((moment - now).total_seconds(), 0))
    return Markup('<time data-left datetime="{}" title="until {}">{}</time>').format(_iso(moment), at(moment), text)


def _after(now: datetime, seconds: float) -> datetime:
    return now + timedelta(seconds=seconds)


def _iso(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).isoformat(timespec="seconds")
