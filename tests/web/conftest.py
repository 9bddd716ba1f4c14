"""The page of an app, served over HTTP, and a worker of it without a pool."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
import pytest
import uvicorn

from celery_throttle.control import queues
from celery_throttle.control.findings import Commands
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.web import asgi
from celery_throttle.web.serving import behind
from tests.control.conftest import make_app
from tests.control.hours import store_counts  # noqa: F401 - a fixture
from tests.support.collected import pytest_runtest_protocol, pytest_runtest_teardown  # noqa: F401 - hooks
from tests.support.waiting import until

SAME = {"Sec-Fetch-Site": "same-origin"}
TOKEN = "a-token-of-some-length"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no workers here that could answer a remote control command."""
    monkeypatch.setattr(queues, "_PATIENCE", 0.1)


@contextmanager
def served(page: Any) -> Iterator[str]:
    """An ASGI app at a URL of its own, which ends with a slash."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(page, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            until(lambda: server.started)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


class Site(NamedTuple):
    """A page and its visitor."""

    url: str
    client: httpx.Client

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(self.url + path, **options)

    def post(self, path: str, fields: dict[str, str] | None = None, **headers: str) -> httpx.Response:
        return self.client.post(self.url + path, data=fields or {}, headers=headers or SAME)


@contextmanager
def visited(page: Any) -> Iterator[Site]:
    """Serve a page, and visit it."""
    with served(page) as url, httpx.Client(timeout=30) as client:
        yield Site(url, client)


@pytest.fixture
def app(server: EmbeddedServer, redis: object) -> Any:
    assert redis  # which empties the server
    return make_app(server.url)


@pytest.fixture
def page(app: Any) -> Iterator[Site]:
    """The page for ana, with all rights."""
    with visited(asgi(app, lambda _: "all", lambda _: "ana", command="celery -A shop")) as site:
        yield site


def own_server(app: Any, *, token: str | None = None, rights: Any = "all", root_path: str = "") -> Any:
    """The server of ``celery throttle web``."""
    return behind(app, Commands(), token, rights, "127.0.0.1", root_path)
