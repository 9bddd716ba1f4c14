"""The page's own server: ``celery throttle web``, its address, and a prefix that a proxy takes away or passes on."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from celery_throttle import ConfigurationError, ThrottleControl
from celery_throttle.web.serving import listening, root_of
from tests.control.test_looking import API, ONE, park
from tests.store.terms_caller import TermsCaller
from tests.support.shell import CELERY, Shell
from tests.support.workers import ROOT
from tests.web.conftest import BEARER, SAME, TOKEN, own_server, served, visited
from tests.web.test_mounted import seen_from

WEB = ("-A", "tests.support.apps.features", "throttle", "web")
PREFIX = "/ops/throttle"


# -- the command -------------------------------------------------------------------------------------------------------


@contextmanager
def served_by_command(shell: Shell, *args: str) -> Iterator[str]:
    """The URL of a page that the command serves until it is interrupted."""
    process = subprocess.Popen(
        [sys.executable, "-c", CELERY, str(ROOT), *WEB, "--port", "0", "--json", *args],
        cwd=shell.directory,
        env=shell.env | {"THROTTLE_WEB_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert "Traceback" not in out + err


def test_it_serves_the_page_until_it_is_interrupted(shell: Shell) -> None:
    with served_by_command(shell, "--root-path", PREFIX) as url:
        assert url.endswith(f"{PREFIX}/")
        assert httpx.get(url).status_code == 401
        for each in (url, url.replace(PREFIX, "")):
            shown = httpx.get(each, headers=BEARER).text
            assert "No limits are known" in shown
            assert f'href="{PREFIX}/page.css' in shown
        change = f"{url}limit/change?name=gpu&change=pause"
        command = "celery -A tests.support.apps.features throttle pause --for=2h gpu"
        assert command in httpx.get(change, headers=BEARER).text


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["--host", "0.0.0.0"], "0.0.0.0 may be reached from other machines: add --token"),
        (["--token", "short"], "The token must be 16 printable ASCII characters or more"),
    ],
)
def test_it_refuses_in_one_line(shell: Shell, args: list[str], error: str) -> None:
    ended = shell.run(*WEB, "--port", "0", *args)
    assert (ended.code, ended.out) == (2, "")
    (line,) = ended.err.splitlines()
    assert line.startswith(f"Error: {error}")


@pytest.mark.parametrize("module", ["starlette", "uvicorn"])
def test_the_extra_is_missing(shell: Shell, module: str) -> None:
    ended = shell.run(*WEB, program=f"import sys; sys.modules['{module}'] = None;{CELERY}")
    assert (ended.code, ended.out) == (2, "")
    (line,) = ended.err.splitlines()
    assert line.startswith("Error: The page needs ")
    assert line.endswith(": pip install 'celery-fair-throttle[web]'")


@pytest.mark.parametrize(("function", "module"), [("asgi", "jinja2"), ("wsgi", "a2wsgi")])
def test_the_extra_is_missing_where_it_is_mounted(shell: Shell, function: str, module: str) -> None:
    program = (
        f"import sys; sys.path.append(sys.argv.pop(1)); sys.modules['{module}'] = None\n"
        f"from celery import Celery; from celery_throttle import ConfigurationError, web\n"
        f"try: web.{function}(Celery())\nexcept ConfigurationError as error: print(error)"
    )
    assert shell.run(program=program).out.endswith("which is not installed: pip install 'celery-fair-throttle[web]'\n")


# -- the address -------------------------------------------------------------------------------------------------------


def test_without_a_token_only_this_machine_by_its_own_names(app: Any) -> None:
    """Another site may have its name point here, and would be of the same origin then."""
    with visited(own_server(app)) as page:
        for host, code in (("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:8460", 200), ("evil.example:1", 400)):
            assert page.get("", headers={"Host": host}).status_code == code


@pytest.mark.parametrize(
    ("host", "token", "said"),
    [
        *(
            (host, None, "may be reached from other machines: add --token")
            for host in ("0.0.0.0", "::", "192.0.2.1", "ops.example", "")
        ),
        *(
            ("127.0.0.1", token, "16 printable ASCII characters or more")
            for token in ("", "short", "ä" * 20, "with\nbreak in the middle")
        ),
    ],
)
def test_it_does_not_listen_without_a_token_that_is_one(host: str, token: str | None, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        listening(host, 0, token)


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"Cannot listen on 127.0.0.1, port {port}"):
            listening("127.0.0.1", port, None)


# -- behind a proxy ----------------------------------------------------------------------------------------------------


def proxy(behind: str, *, strips: bool) -> Any:
    """A site that passes on requests below the prefix, with their own ``Host``."""

    async def passed_on(request: Any) -> Response:
        path = request.url.path.removeprefix(PREFIX) if strips else request.url.path
        url = f"{behind.rstrip('/')}{path or '/'}?{request.url.query}".rstrip("?")
        async with httpx.AsyncClient() as client:
            sent = {"headers": request.headers.raw, "content": await request.body()}
            answer = await client.request(request.method, url, **sent)
        response = Response(answer.content, answer.status_code)
        for name, value in answer.headers.multi_items():
            if name not in ("content-length", "content-encoding", "transfer-encoding"):
                response.headers.append(name, value)
        return response

    return Starlette(routes=[Route(f"{PREFIX}{{rest:path}}", passed_on, methods=["GET", "POST"])])


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


def test_links_and_changes_lead_below_the_prefix(site: httpx.Client, app: Any) -> None:
    site.headers.update(BEARER)
    paths = seen_from(site, f"{PREFIX}/")
    assert {"", "limit", "task", "report", "page.css", "page.js", "limit/change", "task/drop", "alarms"} <= paths
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
