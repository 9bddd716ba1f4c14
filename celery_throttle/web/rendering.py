"""How pages are made: templates that escape whatever they are given, links that work behind any prefix."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

from celery_throttle.control.states import states
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.naming import is_outside
from celery_throttle.core.wording import at, counted, one_line, span
from celery_throttle.web.guard import route_path, visitor
from celery_throttle.web.sparks import HEIGHT, spark

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["SIGNED_IN", "asset", "fragment", "link", "live", "page", "version"]

#: In the scope of a request whose sender has signed in with the token, and may sign out.
SIGNED_IN = "celery_throttle.signed_in"
#: What goes on by itself: the time, and the text of each moment. As one expression they take five times as long.
_NOW, _MOMENT = re.compile(r'data-now="[^"]*"'), re.compile(r"(<time [^>]*>)[^<]*")
_ASSETS = {"page.css": "text/css", "page.js": "text/javascript"}


def link(request: Request, path: str, /, **query: object) -> str:
    """Return a link within the page, wherever that is mounted; parts of the query that are None are left out."""
    given = urlencode({name: value for name, value in query.items() if value is not None})
    root = quote(request.scope.get("root_path", "").rstrip("/"))
    return f"{root}/{path}?{given}" if given else f"{root}/{path}"


def page(request: Request, template: str, *, code: int = 200, **values: Any) -> HTMLResponse:
    """Return a page of a template."""
    return HTMLResponse(_html(request, template, values | {"code": code}), code)


def fragment(request: Request, template: str, **values: Any) -> HTMLResponse:
    """Return a part of a page."""
    return HTMLResponse(_html(request, template, values))


def live(request: Request, template: str, **values: Any) -> Response:
    """Return a page whose template has a part that is looked at again, or with ``?part=live`` that part alone."""
    html = _html(request, f"_{template}.html", values)
    still = hashlib.sha256(_NOW.sub("", _MOMENT.sub(r"\1", html)).encode()).hexdigest()
    etag = f'W/"{still[:32]}"'
    if request.query_params.get("part") != "live":
        return page(request, f"{template}.html", part=Markup(html), etag=etag, **values)  # noqa: S704 - of a template
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers={"ETag": etag})
    return HTMLResponse(html, headers={"ETag": etag})


@lru_cache
def asset(name: str) -> Response:
    """Return the stylesheet, or the script."""
    return Response(_read(name), media_type=_ASSETS[name], headers={"Cache-Control": "public, max-age=86400"})


@lru_cache
def version() -> str:
    """Return what changes with the stylesheet and the script."""
    return hashlib.sha256("".join(map(_read, _ASSETS)).encode()).hexdigest()[:12]


def _read(name: str) -> str:
    return (files("celery_throttle.web") / "static" / name).read_text(encoding="utf-8")


def _html(request: Request, template: str, values: dict[str, Any]) -> str:
    def to(path: str, **query: object) -> str:
        return link(request, path, **query)

    def to_limit(name: str, key: str | None = None) -> str:
        return link(request, "limit", name=name, key=key)

    def to_worker(name: str) -> str:
        return f"{link(request, 'workers')}#{quote(worker_row(name))}"

    query = dict(request.query_params) | {"part": "live"}
    here = link(request, route_path(request.scope).lstrip("/"), **query)
    let_in = "celery_throttle.visitor" in request.scope
    names = {"link": to, "limit_link": to_limit, "worker_link": to_worker, "here": here, "version": version()}
    names["may_change"] = let_in and visitor(request).may_change
    names["may_see_arguments"] = let_in and visitor(request).may_see_arguments
    names["signed_in"] = request.scope.get(SIGNED_IN, False)
    names["head"] = request.app.state.head if let_in else None  # strangers do not see the address of the store
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
    made.globals |= {"ago": _ago, "left": _left, "Bucket": Bucket, "states": states, "after": _after}
    made.globals |= {"is_outside": is_outside, "worker_row": worker_row}
    made.globals |= {"spark": spark, "spark_height": HEIGHT}
    made.filters |= {"span": span, "at": at, "counted": counted, "number": _number}
    return made


def _shown(value: Any) -> Any:
    """Show what is not printable as an escape: it may turn a line around, or end it."""
    if isinstance(value, Markup):
        return value
    text = str(value)
    return text if text.isprintable() else one_line(text)


def worker_row(name: str) -> str:
    """Return the id that the row of a worker has on its page."""
    return f"worker-{name}"


def _number(value: int) -> Markup:
    """Return a number as people read it: ``1 240``, with a blank that does not break."""
    return Markup(f"{value:,}".replace(",", "&nbsp;"))  # noqa: S704 - of digits


def _ago(moment: datetime, now: datetime) -> Markup:
    """Return how long ago it was; the script lets it go on."""
    text = span(max((now - moment).total_seconds(), 0))
    return Markup('<time data-ago datetime="{}" title="since {}">{}</time>').format(_iso(moment), at(moment), text)


def _left(moment: datetime, now: datetime) -> Markup:
    """Return how long it is until then."""
    text = span(max((moment - now).total_seconds(), 0))
    return Markup('<time data-left datetime="{}" title="until {}">{}</time>').format(_iso(moment), at(moment), text)


def _after(now: datetime, seconds: float) -> datetime:
    return now + timedelta(seconds=seconds)


def _iso(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).isoformat(timespec="seconds")
