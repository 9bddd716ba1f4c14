"""The page of a task: its arguments for visitors that may see them, its ETA, and the worker that runs it."""

from __future__ import annotations

import html
import pickle
import re
from typing import Any

import pytest
from kombu.message import Message

from celery_throttle import Limit, ThrottleControl
from celery_throttle.store.exchange import Arrival
from celery_throttle.store.parcel import pack
from celery_throttle.web import asgi
from tests.control.conftest import run_in
from tests.control.test_looking import ONE
from tests.store.terms_caller import TermsCaller
from tests.web.conftest import SAME, TOKEN, Site, own_server, visited
from tests.web.test_pages import HOSTILE, text

SECRET = "hunter2"
ETA = "2026-11-22T13:00:05.250000+01:00"
SHOWN_ETA = "2026-11-22 12:00:05 UTC"
NOT_KEPT = "Arguments not kept"
REFUSED = "Arguments hidden from you"


def message(**headers: object) -> bytes:
    """A message of a task, as it is parked."""
    said: Any = {"task": "call", "argsrepr": f"('{SECRET}',)", "kwargsrepr": "{'amount': 5}", **headers}
    return pack(Message("[[], {}, {}]", headers=said, properties={}, content_type="application/json"))


def park(worker: TermsCaller, task: str = "t", **headers: object) -> Arrival:
    """Park a task of the limit ``api``, which is full from then on; return the holder of its permit."""
    held = [worker.arrive(each, ONE) for each in ("one", "two")]
    worker.put(task, ONE, message=message(**headers))
    assert held[0]
    return held[0]


# -- shown fields ------------------------------------------------------------------------------------------------------


def test_parked_task_has_its_arguments_and_its_eta_also_when_it_runs(page: Site, worker: TermsCaller) -> None:
    first = park(worker, eta=ETA)
    for works in ("", "Worker aaaaaaaa"):
        shown = text(page.get("task?id=t"))
        assert f"Arguments ('{SECRET}',) {{'amount': 5}}" in shown
        assert f"ETA {SHOWN_ETA}" in shown
        assert ("Worker aaaaaaaa" in shown) is bool(works)
        if not works:
            assert worker.end(first, slots=1) == ("t",)


def test_running_task_has_its_worker_as_a_link(page: Site, worker: TermsCaller) -> None:
    worker.arrive("one", ONE)
    answer = page.get("task?id=one")
    (there,) = re.findall(r'<dt>Worker</dt><dd><a href="([^"]*)">aaaaaaaa</a></dd>', answer.text)
    path, _, fragment = html.unescape(there).lstrip("/").partition("#")
    assert f'<tr role="row" id="{fragment}">' in page.get(path).text
    assert NOT_KEPT in text(answer), "the broker has its message"
    assert f'<a href="{there}">aaaaaaaa</a>' in page.get("limit?name=api").text


def test_permit_outside_of_tasks_has_no_arguments(page: Site, app: Any) -> None:
    with Limit("api", 2).acquire(app=app):
        (holder,) = ThrottleControl(app).holders()
        answer = page.get(f"task?id={holder.task_id}")
        assert f">{holder.worker}</a>" in answer.text
        assert "Arguments" not in text(answer)


@pytest.mark.parametrize(
    ("waits", "shown"),
    [
        ({"wait_ms": 60_000, "expires_ms": 90_000}, "start_deadline"),
        ({"wait_ms": 60_000, "expires_ms": 30_000}, "expires"),
        ({}, None),
    ],
)
def test_end_of_a_wait_is_named_on_the_page_and_in_json(
    page: Site, app: Any, worker: TermsCaller, waits: dict[str, int], shown: str | None
) -> None:
    worker.arrive("one", ONE)
    worker.arrive("two", ONE)
    worker.put("t", ONE, message=message(), **waits)
    found = page.get("api/task?id=t").json()
    assert found["wait_ends_by"] == shown == ThrottleControl(app).explain("t").wait_ends_by
    assert (found["wait_ends"] is not None) is (shown is not None)
    names = re.findall(r"(start_deadline|expires) [-\d]+ [:\d]+ UTC", text(page.get("task?id=t")))
    assert names == ([shown] if shown else [])
    names = re.findall(r"(start_deadline|expires) [-\d]+ [:\d]+ UTC", text(page.get("limit?name=api")))
    assert names == ([shown] if shown else [])


@pytest.mark.parametrize(
    ("eta", "shown"),
    [
        pytest.param("2026-11-22T12:00:05", [SHOWN_ETA], id="without a zone it is in UTC, as Celery takes it"),
        *((unreadable, []) for unreadable in (None, "", "soon", 5, ["2026"], "9999-12-31T23:59:59-12:00")),
    ],
)
def test_eta_is_shown_where_it_can_be_read(page: Site, worker: TermsCaller, eta: object, shown: list[str]) -> None:
    park(worker, eta=eta)
    answer = page.get("task?id=t")
    assert answer.status_code == 200
    assert re.findall(r"ETA ([-\d]+ [:\d]+ UTC)?", text(answer)) == shown


# -- rights to the arguments -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("access", "sees", "changes"),
    [
        (lambda _: "all", True, True),
        (lambda _: "arguments", True, False),
        (lambda _: "change", False, True),
        (lambda _: "read", False, False),
        (None, False, False),
    ],
    ids=["all", "arguments", "change", "read", "without access"],
)
def test_rights_decide_about_arguments(app: Any, worker: TermsCaller, access: Any, sees: bool, changes: bool) -> None:
    park(worker)
    with visited(asgi(app, access)) as page:
        for path in ("task?id=t", "task?id=t&part=live", "task/drop?id=t", "limit?name=api"):
            assert not ("/task/drop" in page.get(path).text and not changes), path
            assert (SECRET in page.get(path).text) is (sees and path.startswith("task?")), path
        assert (REFUSED in text(page.get("task?id=t"))) is not sees
        for path in ("limit/change?name=api", "task/drop?id=t"):
            assert page.post(path, {"change": "pause"}).status_code == (303 if changes else 403), path
    assert (ThrottleControl(app).limit("api").status().paused is not None) is changes


@pytest.mark.parametrize(("token", "rights", "sees"), [(None, "all", 0), (TOKEN, "all", 1), (TOKEN, "read", 0)])
def test_own_server_shows_arguments_only_with_the_token(
    app: Any, worker: TermsCaller, token: str | None, rights: str, sees: int
) -> None:
    """Without one each process and user of the machine may look; changes are as before."""
    park(worker)
    with visited(own_server(app, token=token, rights=rights)) as page:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = page.get("task?id=t", headers=headers)
        assert (answer.status_code, answer.text.count(SECRET)) == (200, sees)
        assert ("task/drop" in answer.text) is (rights == "all")
        assert page.post("task/drop?id=t", None, **SAME, **headers).status_code == (303 if rights == "all" else 403)


def test_json_and_the_command_have_no_arguments(page: Site, app: Any, worker: TermsCaller) -> None:
    """Their output goes into logs and tickets."""
    park(worker, eta=ETA)
    answer = page.get("api/task?id=t")
    assert answer.json()["eta"] == "2026-11-22T12:00:05.250000+00:00"
    found = ThrottleControl(app).explain("t")
    assert (found.args, found.kwargs) == (f"('{SECRET}',)", "{'amount': 5}")
    for told in (answer.text, run_in(app, "explain", "t").out, run_in(app, "explain", "t", "--json").out, repr(found)):
        assert "2026" in told
        assert SECRET not in told


# -- hostile messages --------------------------------------------------------------------------------------------------


def test_hostile_arguments_are_text(page: Site, worker: TermsCaller) -> None:
    park(worker, argsrepr=f"('{HOSTILE}', '\x1b[2J\u202e\x00\ud800')")
    answer = page.get("task?id=t")
    assert HOSTILE not in answer.text
    assert not {"\x1b", "\u202e", "\x00"} & set(answer.text)
    assert rf"('{HOSTILE}', '\x1b[2J\u202e\x00\ud800')" in text(answer)


def test_long_arguments_are_cut_and_others_than_text_not_kept(page: Site, app: Any, worker: TermsCaller) -> None:
    park(worker, argsrepr="x" * 100_000)
    shown = page.get("task?id=t").text
    assert len(shown) < 10_000
    assert "xxx…" in shown
    assert len(str(ThrottleControl(app).explain("t").args)) == 1000
    for task, headers in (("a", {"argsrepr": 3, "kwargsrepr": None}), ("b", {"argsrepr": None, "kwargsrepr": ["x"]})):
        worker.put(task, ONE, message=message(**headers))
        assert NOT_KEPT in text(page.get(f"task?id={task}"))


class Bomb:
    """Unpickling it is an error that no reader catches."""

    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('unpickled')",))


def test_pickled_body_is_never_read(page: Site, worker: TermsCaller) -> None:
    about: Any = {"task": "call", "argsrepr": "(<Bomb>,)", "kwargsrepr": "{}"}
    kind = {"content_type": "application/x-python-serialize", "content_encoding": "binary"}
    body: Any = pickle.dumps(([Bomb()], {}, {}))
    park(worker)
    worker.put("bomb", ONE, message=pack(Message(body, headers=about, properties={}, **kind)))
    assert "Arguments (<Bomb>,)" in text(page.get("task?id=bomb"))
