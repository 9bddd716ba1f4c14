"""The page's own server behind a prefix: with a proxy that takes the prefix away, and with one that passes it on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from celery_throttle import ConfigurationError, ThrottleControl
from celery_throttle.web.serving import root_of
from tests.control.test_looking import API, ONE, park
from tests.store.terms_caller import TermsCaller
from tests.support.shell import Shell
from tests.web.conftest import BEARER, SAME, TOKEN, own_server, served
from tests.web.test_command import served_by_command
from tests.web.test_mounted import seen_from

PREFIX = "/ops/throttle"


def proxy(behind: str, *, strips: bool) -> Any:
    """A site that passes on requests below the prefix, with their own ``Host``."""

    async def passed_on(request: Any) -> Response:
        path = request.url.path.removeprefix(PREFIX) if strips else request.url.path
        async with httpx.AsyncClient() as client:
            answer = await client.request(
                request.method,
                f"{behind.rstrip('/')}{path or '/'}?{request.url.query}".rstrip("?"),
                headers=request.headers.raw,
                content=await request.body(),
            )
        left_out = ("content-length", "content-encoding", "transfer-encoding")
        response = Response(answer.content, answer.status_code)
        for name, value in answer.headers.multi_items():
            if name not in left_out and name != "content-length":
                response.headers.append(name, value)
        return response

    routes = [Route(f"{PREFIX}{{rest:path}}", passed_on, methods=["GET", "POST"])]
    return Starlette(routes=routes)


@pytest.fixture(params=[True, False], ids=["stripped", "passed on"])
def site(request: pytest.FixtureRequest, app: Any, worker: TermsCaller) -> Iterator[httpx.Client]:
    worker.know(API)
    park(worker, "t", ONE)
    app.tasks["charge"].apply_async((17, 5))
    page = own_server(app, token=TOKEN, root_path=PREFIX)
    with (
        served(page) as behind,
        served(proxy(behind, strips=request.param)) as url,
        httpx.Client(base_url=url, timeout=30) as client,
    ):
        yield client


def test_every_link_leads_below_the_prefix(site: httpx.Client) -> None:
    site.headers.update(BEARER)
    paths = seen_from(site, f"{PREFIX}/")
    assert {"", "limit", "task", "report", "page.css", "page.js", "limit/change", "task/drop", "alarms"} <= paths


def test_change_redirects_below_the_prefix(site: httpx.Client, app: Any) -> None:
    site.headers.update(BEARER)
    answer = site.post(f"{PREFIX}/limit/change?name=api", data={"change": "pause"}, headers=SAME)
    assert answer.headers["location"] == f"{PREFIX}/limit?name=api"
    assert "api is paused." in site.get(answer.headers["location"]).text
    assert ThrottleControl(app).limit("api").status().paused


def test_session_is_of_the_prefix_alone(site: httpx.Client) -> None:
    """Two pages on one host keep their sessions apart."""
    asked = site.get(f"{PREFIX}/locks")
    assert asked.status_code == 401
    (action,) = re.findall(r'<form class="find" method="post" action="([^"]*)"', asked.text)
    answer = site.post(action, data={"token": TOKEN}, headers=SAME)
    assert answer.headers["location"] == f"{PREFIX}/locks"
    assert f"Path={PREFIX};" in f"{answer.headers['set-cookie']};"
    assert "Identity locks" in site.get(answer.headers["location"]).text
    signed_out = site.post(f"{PREFIX}/sign-out", headers=SAME)
    assert signed_out.headers["location"] == f"{PREFIX}/"
    assert site.get(f"{PREFIX}/locks").status_code == 401


@pytest.mark.parametrize(
    ("given", "expected"), [("", ""), ("/", ""), ("/ops/throttle/", "/ops/throttle"), ("/a-b/c.d_e~", "/a-b/c.d_e~")]
)
def test_root_path_is_taken_without_its_last_slash(given: str, expected: str) -> None:
    assert root_of(given) == expected


@pytest.mark.parametrize(
    "given", ["ops", "//evil.example", "/a//b", "/a b", "/a?b", "/a#b", "/../a", "http://x/a", "/é"]
)
def test_root_path_that_cannot_work_is_refused(given: str) -> None:
    with pytest.raises(ConfigurationError, match="--root-path must be a path such as '/ops/throttle'"):
        root_of(given)


def test_command_serves_below_its_root_path(shell: Shell) -> None:
    with served_by_command(shell, "--root-path", PREFIX) as url:
        assert url.endswith(f"{PREFIX}/")
        for each in (url, url.replace(PREFIX, "")):
            assert f'href="{PREFIX}/page.css' in httpx.get(each, headers=BEARER).text
