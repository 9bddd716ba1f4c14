"""The page within sites of other frameworks: all its links work behind a prefix, and changes are made."""

from __future__ import annotations

import html
import re
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import httpx
import pytest
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.routing import Mount
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from celery_throttle import ConfigurationError, Limit, ThrottleControl
from celery_throttle.web import asgi, wsgi
from tests.control.test_looking import API
from tests.store.terms_caller import TermsCaller, terms
from tests.web.conftest import SAME, served
from tests.web.test_pages import HOSTILE
from tests.web.test_task import SECRET, park

LINK = re.compile(r'(?:href|src|action|data-live)="([^"#]*)"')


class Quiet(WSGIRequestHandler):
    """Writes no line for each request."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its own name
        pass


@contextmanager
def served_by_wsgi(site: Any) -> Iterator[str]:
    """A WSGI app at a URL of its own."""
    with make_server("127.0.0.1", 0, site, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def rights(request: Any) -> Any:
    """Return the rights as a site does after a login."""
    return request.headers.get("x-rights")


def user(request: Any) -> Any:
    return request.headers.get("x-user")


def in_fastapi(app: Any) -> AbstractContextManager[str]:
    site = FastAPI()
    site.mount("/ops/throttle", asgi(app, rights, user))
    return served(site)


def in_starlette(app: Any) -> AbstractContextManager[str]:
    """Mounted within a mounted app, as behind a proxy that takes a part of the path away."""
    return served(Starlette(routes=[Mount("/ops", routes=[Mount("/throttle", asgi(app, rights, user))])]))


def in_flask(app: Any) -> AbstractContextManager[str]:
    site = Flask(__name__)
    page = wsgi(app, rights, lambda request: request.scope["wsgi_environ"].get("HTTP_X_USER"))
    site.wsgi_app = DispatcherMiddleware(site.wsgi_app, {"/ops/throttle": page})  # type: ignore[method-assign]
    return served_by_wsgi(site)


FRAMEWORKS = [in_fastapi, in_starlette, in_flask]
ANA = {"X-Rights": "all", "X-User": "ana"}


def crowd(worker: TermsCaller) -> None:
    """Have a holder and a parked task of a limit with hostile names."""
    worker.know(API)
    limit = Limit(HOSTILE, 1, key="k")
    for task in ("one", "two"):
        worker.arrive(task, terms(limit).needs({"keys": {HOSTILE: "it's/a?key"}}))


@pytest.fixture(params=FRAMEWORKS, ids=lambda each: each.__name__)
def site(request: pytest.FixtureRequest, app: Any, worker: TermsCaller) -> Iterator[httpx.Client]:
    crowd(worker)
    app.tasks["charge"].apply_async((17, 5))
    with request.param(app) as url, httpx.Client(base_url=url, headers=ANA, timeout=30) as client:
        yield client


def seen_from(client: httpx.Client, first: str) -> set[str]:
    """All paths that links lead to, which all answer."""
    left = [first]
    seen: set[tuple[str, tuple[str, ...]]] = set()
    while left:
        path = left.pop()
        bare, _, query = path.partition("?")
        if (bare, tuple(sorted(query.split("&")))) in seen:
            continue
        seen.add((bare, tuple(sorted(query.split("&")))))
        answer = client.get(path)
        lacks_one = path.endswith(("/limit", "/limit/change", "/task/drop"))  # forms add the missing ones
        assert answer.status_code == (400 if lacks_one else 200), path
        if answer.headers["content-type"].startswith("text/html"):
            links = [html.unescape(each) for each in LINK.findall(answer.text)]
            assert all(each.startswith((first, "data:,")) for each in links), links
            left += [each for each in links if each.startswith("/")]
    return {bare.removeprefix(first) for bare, _ in seen}


def changed_by_ana(client: httpx.Client, app: Any) -> None:
    """Make a change, which is shown once and has its author, and not from nowhere."""
    change = "/ops/throttle/limit/change?name=api"
    assert client.post(change, data={"change": "pause"}).status_code == 403
    answer = client.post(change, data={"change": "pause", "why": "ü"}, headers=SAME)
    assert answer.headers["location"] == "/ops/throttle/limit?name=api"
    shown = [client.get(answer.headers["location"]).text for _ in range(2)]
    assert ["api is paused." in each for each in shown] == [True, False]
    said = ThrottleControl(app).limit("api").status().paused
    assert (said and said.by, said and said.why) == ("ana", "ü")


def test_every_link_works(site: httpx.Client) -> None:
    paths = seen_from(site, "/ops/throttle/")
    changes = {"limit/change", "task/drop", "locks/unlock", "alarms"}
    assert paths == {"", "limit", "task", "workers", "locks", "audit", "report", "page.css", "page.js", *changes}
    answer = site.get("/ops/throttle", follow_redirects=True)
    assert (answer.status_code, "<h1>Limits</h1>" in answer.text) == (200, True)


def test_a_change_by_a_visitor_with_rights(site: httpx.Client, app: Any) -> None:
    changed_by_ana(site, app)
    for path in ("", "limit?name=api", "api/limits"):
        assert httpx.get(f"{site.base_url}ops/throttle/{path}").status_code == 403


# -- Django ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def django() -> Any:
    """A Django site of its own settings, with users in memory."""
    import django as package  # type: ignore[import-untyped] # noqa: PLC0415
    from django.conf import settings  # type: ignore[import-untyped] # noqa: PLC0415
    from django.core.management import call_command  # type: ignore[import-untyped] # noqa: PLC0415

    apps = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"]
    middleware = [
        "django.middleware.security.SecurityMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
    ]
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": "file:page?mode=memory&cache=shared"}
    settings.configure(
        SECRET_KEY="not one", ALLOWED_HOSTS=["*"], INSTALLED_APPS=apps, MIDDLEWARE=middleware, USE_TZ=True,
        DATABASES={"default": database}, LOGIN_URL="/login/",
    )  # fmt: skip
    package.setup()
    call_command("migrate", verbosity=0)
    return package


def login(name: str, *, staff: bool, may: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the cookie of a user that has logged in."""
    from django.contrib.auth import get_user_model  # type: ignore[import-untyped] # noqa: PLC0415
    from django.contrib.auth.models import Permission  # type: ignore[import-untyped] # noqa: PLC0415
    from django.contrib.contenttypes.models import ContentType  # type: ignore[import-untyped] # noqa: PLC0415
    from django.test import Client  # type: ignore[import-untyped] # noqa: PLC0415

    user, _ = get_user_model().objects.get_or_create(username=name, defaults={"is_staff": staff})
    content_type, _ = ContentType.objects.get_or_create(app_label="celery_throttle", model="limit")
    for codename in may:  # as docs/howto/page.md has it
        permission, _ = Permission.objects.get_or_create(
            codename=codename, content_type=content_type, defaults={"name": codename}
        )
        user.user_permissions.add(permission)
    client = Client()
    client.force_login(user)
    return {"sessionid": client.cookies["sessionid"].value}


@pytest.fixture(params=["wsgi", "asgi"])
def django_site(request: pytest.FixtureRequest, django: Any, app: Any, worker: TermsCaller) -> Iterator[str]:
    assert django
    from django.core.asgi import get_asgi_application  # type: ignore[import-untyped] # noqa: PLC0415
    from django.core.wsgi import get_wsgi_application  # type: ignore[import-untyped] # noqa: PLC0415
    from django.test import override_settings  # noqa: PLC0415
    from django.urls import path  # type: ignore[import-untyped] # noqa: PLC0415

    from celery_throttle.contrib.django import throttle_page  # noqa: PLC0415 - only where Django has its settings

    worker.know(API)
    urls: Any = ModuleType("urls")
    urls.urlpatterns = [
        path("ops/throttle/", throttle_page(app)),
        path("ops/mine/", throttle_page(app, access=lambda _: "read")),
        path("ops/own/", throttle_page(app, permission="auth.change_user", arguments="auth.view_user")),
    ]
    make, serve = (get_wsgi_application, served_by_wsgi) if request.param == "wsgi" else (get_asgi_application, served)
    with override_settings(ROOT_URLCONF=urls), serve(make()) as url:
        yield url


def test_django_staff(django_site: str, app: Any, worker: TermsCaller) -> None:
    crowd(worker)
    cookies = login("ana", staff=True, may=("change_limits",))
    with httpx.Client(base_url=django_site, cookies=cookies, timeout=30) as client:
        assert {"", "limit", "page.css", "limit/change"} <= seen_from(client, "/ops/throttle/")
        assert client.get("/ops/throttle/page.css").headers["content-type"].startswith("text/css")
        assert "default-src 'none'" in client.get("/ops/throttle/").headers["content-security-policy"]
        changed_by_ana(client, app)


@pytest.mark.parametrize(
    ("name", "may", "sees", "changes"),
    [
        ("kim", (), False, False),
        ("lee", ("view_arguments",), True, False),
        ("mia", ("change_limits",), False, True),
        ("noa", ("view_arguments", "change_limits"), True, True),
    ],
)
def test_django_permissions_decide_about_arguments_and_changes(
    django_site: str, app: Any, worker: TermsCaller, name: str, may: tuple[str, ...], sees: bool, changes: bool
) -> None:
    park(worker)
    with httpx.Client(base_url=django_site, cookies=login(name, staff=True, may=may), timeout=30) as client:
        shown = client.get("/ops/throttle/task?id=t").text
        assert (SECRET in shown, "task/drop" in shown) == (sees, changes)
        assert SECRET not in client.get("/ops/mine/task?id=t").text
        assert SECRET not in client.get("/ops/own/task?id=t").text
        for site, code in (("own", 403), ("throttle", 303 if changes else 403)):
            answer = client.post(f"/ops/{site}/limit/change?name=api", data={"change": "pause"}, headers=SAME)
            assert answer.status_code == code, site
    assert (ThrottleControl(app).limit("api").status().paused is not None) is changes


@pytest.mark.parametrize("option", ["permission", "arguments"])
@pytest.mark.parametrize("permission", ["", "change_limits", 3, None])
def test_django_permission_that_cannot_be_one_is_refused(django: Any, app: Any, option: str, permission: Any) -> None:
    assert django
    from celery_throttle.contrib.django import throttle_page  # noqa: PLC0415 - only where Django has its settings

    with pytest.raises(ConfigurationError, match=f"throttle_page: {option} must be"):
        throttle_page(app, **{option: permission})


def test_django_others(django_site: str) -> None:
    assert httpx.get(f"{django_site}ops/throttle/").headers["location"] == "/login/?next=/ops/throttle/"
    with httpx.Client(base_url=django_site, cookies=login("bob", staff=False)) as client:
        assert client.get("/ops/throttle/").status_code == 403
        assert client.post("/ops/throttle/limit/change?name=api", data={"change": "pause"}).status_code == 403
        assert client.get("/ops/mine/").status_code == 200
        assert client.post("/ops/mine/limit/change?name=api", data={"change": "pause"}, headers=SAME).status_code == 403
