"""The head line: which app, which store, which environment, how many alarms."""

from __future__ import annotations

import re
from typing import Any

from celery_throttle import ThrottleControl
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.web import asgi
from tests.control.conftest import make_app
from tests.control.test_looking import API, ONE, park
from tests.store.caller import KEYS
from tests.store.terms_caller import TermsCaller
from tests.web.conftest import Site, visited
from tests.web.test_pages import PAGES, text


def head(answer: Any) -> str:
    """The head line as it is read."""
    found = answer.text.partition('<div class="where"')[2].partition("</div>")[0].partition(">")[2]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", found)).strip()


def environment_class(answer: Any) -> str:
    (found,) = re.findall(r'<strong class="environment ([\w-]*)"', answer.text)
    return str(found)


def test_every_page_names_app_store_group_and_environment(server: EmbeddedServer, worker: TermsCaller) -> None:
    park(worker, "t3", ONE)
    app = make_app(server.url, throttle_environment="production")
    with visited(asgi(app, lambda _: "all")) as page:
        for path in (*PAGES, "limit?name=nope"):
            line = head(page.get(path))
            assert line.startswith(f"production App shop Store {server.url} Group {KEYS.prefix} "), path
            assert "shop production · throttle</title>" in page.get(path).text, path


def test_environments_differ_in_colour(server: EmbeddedServer, redis: object) -> None:
    assert redis
    seen = {}
    for name in ("production", "prod-eu", "staging"):
        with visited(asgi(make_app(server.url, throttle_environment=name))) as page:
            seen[name] = environment_class(page.get(""))
    assert seen["production"] == seen["prod-eu"] != seen["staging"]


def test_head_without_environment_has_no_empty_mark(page: Site) -> None:
    assert head(page.get("")).startswith("App shop Store")
    assert 'class="environment' not in page.get("").text


def test_head_masks_the_password_of_the_store() -> None:
    app = make_app("redis://ana:geheim@127.0.0.1:1/0")
    with visited(asgi(app)) as page:
        answer = page.get("")
    assert answer.status_code == 503
    assert "127.0.0.1:1" in head(answer)
    assert "geheim" not in answer.text


def test_alarms_of_the_last_report_stand_on_every_page(page: Site, app: Any, worker: TermsCaller) -> None:
    worker.know(API)
    assert head(page.get("")).endswith("check for alarms")
    ThrottleControl(app).limit("api").pause()
    worker.put("t3", ONE, age=3600)
    alarms = len(page.get("api/report").json()["alarms"])
    assert alarms
    words = f"{alarms} alarm{'s' if alarms > 1 else ''}"
    for path in ("", "task", "limit?name=api", "locks"):
        assert head(page.get(path)).endswith(words)
    answer = page.get("alarms")
    assert text(answer).strip() == words
    assert 'href="/report"' in answer.text


def test_alarms_of_a_store_that_is_away_are_no_number(own_server: EmbeddedServer) -> None:
    with visited(asgi(make_app(own_server.url))) as page:
        own_server.kill()
        assert page.get("alarms").status_code == 503
        assert head(page.get("")).endswith("check for alarms")
