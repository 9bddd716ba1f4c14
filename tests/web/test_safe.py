"""Rights of visitors: the token and its cookie, requests from other sites, the headers of every answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from httpx import Response
from starlette.requests import Request

from celery_throttle import ConfigurationError, ThrottleControl
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.web import asgi, tokens
from celery_throttle.web.guard import _is_host, route_path
from tests.control.test_looking import API
from tests.store.terms_caller import TermsCaller
from tests.web.conftest import BEARER, SAME, TOKEN, Site, own_server, visited

PAUSE = "limit/change?name=api"
FIELDS = {"change": "pause"}
GUARDED = ("", "limit?name=api", "task", "locks", "audit", "report", "metrics", "api/limits", "api/report", "nope")


@pytest.fixture(autouse=True)
def _known(worker: TermsCaller) -> None:
    worker.know(API)


def paused(app: Any) -> bool:
    return ThrottleControl(app).limit("api").status().paused is not None


# -- rights ------------------------------------------------------------------------------------------------------------


async def of_header(request: Request) -> Any:
    return request.headers.get("x-rights")


@pytest.mark.parametrize("access", [of_header, lambda request: request.headers.get("x-rights")])
def test_rights_of_each_visitor(app: Any, access: Any) -> None:
    with visited(asgi(app, access)) as page:
        assert [page.get(each).status_code for each in GUARDED] == [403] * len(GUARDED)
        assert page.post(PAUSE, FIELDS).status_code == 403
        reads = {"X-Rights": "read"}
        assert page.get("limit?name=api", headers=reads).status_code == 200
        assert "<form" not in page.get("limit?name=api", headers=reads).text
        assert page.get(f"{PAUSE}&change=pause", headers=reads).status_code == 403
        for path in (PAUSE, "", "limit?name=api"):  # also where nothing is changed
            assert page.post(path, FIELDS, **SAME, **reads).status_code == 403
        assert not paused(app)
        assert page.post(PAUSE, FIELDS, **SAME, **{"X-Rights": "all"}).status_code == 303
        assert paused(app)


def test_invalid_right_or_app_is_refused(app: Any) -> None:
    with visited(asgi(app, lambda _: "write")) as page:  # type: ignore[arg-type, return-value]
        assert page.get("").status_code == 500
    with pytest.raises(ConfigurationError, match="asgi: app must be the Celery app"):
        asgi("proj")


# -- paths -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["x/page.css?", "x/page.css#", "/page.js", "x\\page.css", "x/api/y?", "x:y", "@/page.css?", "[", ""]
)
def test_hostile_host_header_opens_nothing(app: Any, host: str) -> None:
    """Before Starlette 1.0.1 ``request.url`` begins with the Host header, with any content."""
    for page_of in (own_server(app, token=TOKEN), asgi(app, lambda _: None)):
        with visited(page_of) as page:
            for path in GUARDED:
                answer = page.get(path, headers={"Host": host})
                assert answer.status_code in (401, 403), path
                assert answer.headers["content-type"].startswith("application/json") is path.startswith("api/"), path
            assert page.post(PAUSE, FIELDS, Host=host, **SAME).status_code in (401, 403)
            assert page.get("page.css", headers={"Host": host}).status_code == 200


def test_only_the_two_files_themselves_are_open(app: Any) -> None:
    with visited(asgi(app, lambda _: None)) as page:
        for path in ("nope/page.css", "limit/page.css", "api/page.js", "/page.css", "page.css/", "page.css%3F"):
            assert page.get(path).status_code == 403


@pytest.mark.parametrize(
    ("path", "root", "route"),
    [
        ("/page.css", "", "/page.css"),
        ("/ops/page.css", "/ops", "/page.css"),
        ("/ops", "/ops", ""),
        ("/opsx/page.css", "/ops", "/opsx/page.css"),
        ("/page.css", "/ops", "/page.css"),
    ],
)
def test_route_path_is_that_of_the_router(path: str, root: str, route: str) -> None:
    assert route_path({"path": path, "root_path": root}) == route


# -- from other sites --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "lets"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://HOST"}, False),
        ({"Origin": "http://HOST"}, True),
        ({"Origin": "https://HOST"}, True),  # behind a proxy
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "http://HOST.evil.example"}, False),
        ({"Origin": "http://127.0.0.1:1"}, False),
        ({"Origin": "null"}, False),
        ({"X-Nothing": "at all"}, False),
        ({"Referer": "http://HOST/"}, False),
        ({"Authorization": "Bearer anything"}, True),
    ],
)
def test_a_change_comes_from_the_page_itself(page: Site, app: Any, headers: dict[str, str], lets: bool) -> None:
    host = page.url.split("/")[2]
    sent = {name: value.replace("HOST", host) for name, value in headers.items()}
    assert page.post(PAUSE, FIELDS, **sent).status_code == (303 if lets else 403)
    assert paused(app) is lets


def test_a_get_changes_nothing(page: Site, app: Any) -> None:
    for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"):
        page.client.request(method, page.url + PAUSE + "&change=pause", headers=SAME)
    assert not paused(app)


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("https://a.example", "a.example", True),
        ("https://a.example", "a.example:443", True),
        ("https://a.example:8443", "a.example", False),
        ("http://[::1]:80", "[::1]", True),
        ("http://a.example:x", "a.example", False),
        ("", "", False),
        ("file://", "", False),
    ],
)
def test_which_origin_is_at_a_host(origin: str, host: str, same: bool) -> None:
    assert _is_host(origin, host) is same


def test_headers_of_every_answer(page: Site, app: Any) -> None:
    answers = [page.get(each) for each in (*GUARDED, "page.css", "page.js")]
    with visited(asgi(app, lambda _: None)) as other:
        answers.append(other.get(""))
    for each in answers:
        policy = dict(part.strip().split(" ", 1) for part in each.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["form-action"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert each.headers["x-content-type-options"] == "nosniff"
        assert each.headers["referrer-policy"] == "same-origin"
        assert "no-store" in each.headers["cache-control"] or each.url.path.startswith("/page.")
    for path in ("", "limit?name=api", "report", f"{PAUSE}&change=set"):
        shown = page.get(path).text
        assert " style=" not in shown
        assert " onclick=" not in shown
        assert shown.count("<script") == shown.count('<script src="/page.js')


# -- a server of its own -----------------------------------------------------------------------------------------------


def signed_in(page: Site, token: str = TOKEN, **query: str) -> Response:
    """Send the form; return the answer."""
    return page.client.post(f"{page.url}sign-in", params=query, data={"token": token}, headers=SAME)


@pytest.fixture
def private(app: Any) -> Iterator[Site]:
    """A page that wants a token."""
    with visited(own_server(app, token=TOKEN)) as page:
        yield page


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of sessions and pauses, to be moved by hand."""
    now = [1000.0]
    monkeypatch.setattr(tokens, "monotonic", lambda: now[0])
    return now


def test_signing_in_by_post_begins_a_session(private: Site, server: EmbeddedServer) -> None:
    for path in GUARDED:
        answer = private.get(path)
        assert (answer.status_code, server.url in answer.text) == (401, False), path
    assert private.get("page.css").status_code == 200
    form = private.get("limit?name=api&key=").text
    assert 'method="post" action="/sign-in?next=%2Flimit%3Fname%3Dapi%26key%3D"' in form
    answer = signed_in(private, next="/limit?name=api&key=")
    assert (answer.status_code, answer.headers["location"]) == (303, "/limit?name=api&key=")
    cookie = answer.headers["set-cookie"]
    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {each.strip() for each in cookie.split(";")}
    assert private.get("limit?name=api").status_code == 200  # the client has kept it
    assert private.get("sign-in", follow_redirects=True).status_code == 200
    assert private.post(PAUSE, FIELDS).status_code == 303
    assert private.post(PAUSE, FIELDS, Origin="http://evil.example").status_code == 403


@pytest.mark.parametrize("path", ["limit?name=api&", "sign-in?"])
def test_token_in_an_address_starts_no_session(private: Site, path: str) -> None:
    """Addresses are kept by browsers, proxies and logs."""
    answer = private.get(f"{path}token={TOKEN}")
    assert (answer.status_code, "set-cookie" in answer.headers, TOKEN in answer.text) == (401, False, False)


def test_session_ends_after_its_time(private: Site, clock: list[float]) -> None:
    cookie = signed_in(private).headers["set-cookie"]
    assert "Max-Age=43200" in cookie
    sent = {"Cookie": cookie.partition(";")[0]}
    clock[0] += 43_199
    assert private.get("", headers=sent).status_code == 200
    clock[0] += 2
    assert private.get("", headers=sent).status_code == 401
    answer = private.client.post(private.url + PAUSE, data=FIELDS, headers=SAME | sent)
    assert (answer.status_code, "A token is needed" in answer.text) == (401, True)


@pytest.mark.parametrize("rights", ["all", "read"])
def test_session_ends_by_signing_out(app: Any, rights: str) -> None:
    with visited(own_server(app, token=TOKEN, rights=rights)) as page:
        cookies = [signed_in(page).headers["set-cookie"].partition(";")[0] for _ in range(2)]
        assert len(set(cookies)) == 2
        shown = page.get("", headers={"Cookie": cookies[0]}).text
        assert '<form method="post" action="/sign-out">' in shown
        for elsewhere in ({}, {"Sec-Fetch-Site": "cross-site"}):
            sent = {"Cookie": cookies[0]} | elsewhere
            assert page.client.post(f"{page.url}sign-out", headers=sent).status_code == 403
        answer = page.client.post(f"{page.url}sign-out", headers={"Cookie": cookies[0]} | SAME)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert "Max-Age=0" in answer.headers["set-cookie"]
        assert [page.get("", headers={"Cookie": each}).status_code for each in cookies] == [401, 200]


def test_visitor_without_session_gets_no_sign_out(app: Any) -> None:
    with visited(own_server(app, token=TOKEN)) as page, visited(own_server(app)) as local:
        assert "sign-out" not in page.get("", headers=BEARER).text + page.get("").text + local.get("").text
        assert local.post("sign-in", {"token": TOKEN}).status_code == 404


@pytest.mark.parametrize("by_form", [True, False])
def test_wrong_tokens_are_logged_and_followed_by_a_pause(
    private: Site, clock: list[float], caplog: pytest.LogCaptureFixture, by_form: bool
) -> None:
    def send(token: str) -> int:
        bearer = {"Authorization": f"Bearer {token}"}
        return (signed_in(private, token) if by_form else private.get("api/limits", headers=bearer)).status_code

    assert signed_in(private).status_code == 303
    sent = {"Cookie": "; ".join(f"{name}={value}" for name, value in private.client.cookies.items())}
    private.client.cookies.clear()
    assert [send(TOKEN[:-1]) for _ in range(7)] == [401] * 5 + [429] * 2
    logged = [each.getMessage() for each in caplog.records if each.name == tokens.__name__]
    assert logged == [f"celery_throttle: wrong token from 127.0.0.1, {count} in a row" for count in range(1, 6)]
    assert send(TOKEN) == 429, "it is not looked at"
    answer = signed_in(private, next="/audit")
    assert "Too many wrong tokens: try again in 30 s." in answer.text
    assert "next=%2Faudit" in answer.text
    assert private.get("", headers=sent).status_code == 200, "a visitor that has signed in stays so"
    clock[0] += 31
    assert [send("no"), send("no")] == [401, 429], "each further one is followed by a pause"
    clock[0] += 31
    assert send(TOKEN) in (200, 303)
    private.client.cookies.clear()
    assert [send("no") for _ in range(3)] == [401] * 3, "the right one ends the row"


def test_memory_of_strangers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_MOST", 3)
    door = tokens.Token(TOKEN, "all")
    for number in range(9):
        request = Request({"type": "http", "client": (f"192.0.2.{number}", 1), "headers": []})
        assert not door._is_right(request, "no")
        door._begin()
    assert (len(door._wrong), len(door._sessions)) == (3, 3)
    assert "192.0.2.8" in door._wrong


def test_a_token_that_is_sent_each_time(private: Site) -> None:
    assert private.get("api/limits", headers=BEARER).status_code == 200
    assert private.post(PAUSE, FIELDS, **BEARER).status_code == 303
    for wrong in ("Bearer nope", f"Basic {TOKEN}", "Bearer", TOKEN, "Bearer \xff"):
        assert private.get("api/limits", headers={"Authorization": wrong.encode("latin-1")}).status_code == 401
    for cookie in (TOKEN, "", "\xff"):
        sent = f"celery_throttle={cookie}".encode("latin-1")
        assert private.get("", headers={"Cookie": sent}).status_code == 401
    assert private.get("api/limits").json() == {"error": "A token is needed to see this page."}


@pytest.mark.parametrize(
    ("asked", "goes_to"),
    [
        ("//evil.example/", "/evil.example/"),
        ("/\\evil.example", "/%5Cevil.example"),
        ("https://evil.example/", "/https%3A//evil.example/"),
        ("", "/"),
        ("/limit?name=a b&path=x&request=y\r\nX: 1", "/limit?name=a+b&path=x&request=y%0D%0AX%3A+1"),
    ],
)
def test_signing_in_leads_to_no_other_host(private: Site, asked: str, goes_to: str) -> None:
    assert signed_in(private, next=asked).headers["location"] == goes_to
