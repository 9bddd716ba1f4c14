"""Read-only views: every page, the same as JSON; hostile names, an empty store, many keys, a store that is away."""

from __future__ import annotations

import html
import json
import re
from typing import Any
from urllib.parse import urlencode

import pytest

from celery_throttle import Limit, ThrottleControl, Throttled
from celery_throttle.clients import store_client
from celery_throttle.core.task_codes import code_of
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.web import asgi
from tests.control.conftest import make_app, run_in
from tests.control.test_looking import API, MAIL, ONE, TENANT, fill, fill_and_park, of, park
from tests.store.terms_caller import TermsCaller, terms
from tests.support.waiting import until
from tests.web.conftest import Site, visited

PAGES = (
    "",
    "limit?name=api",
    "task",
    "task?id=t3",
    "workers",
    "locks",
    "audit",
    "report",
    "limit/change?name=api&change=pause",
)
NONE = "\N{EN DASH}"
HOSTILE = "<script>alert(1)</script>"
KEYS = ('it\'s "x"', "<img src=x onerror=alert(1)>", "../../../etc", "a&b=c#d?e%2f", "-rf", "$(reboot)`id`")


def text(answer: Any) -> str:
    """Return the text of a page, without its tags."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", answer.text)))


def rows(answer: Any) -> list[str]:
    """The rows of its tables."""
    found = re.findall(r"<tr.*?</tr>", answer.text, flags=re.DOTALL)
    return [re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", each))).strip() for each in found]


def many(worker: TermsCaller, count: int) -> list[str]:
    """Have a task of each of so many keys hold its permit; return the keys."""
    names = [f"k{number:04}" for number in range(count)]
    for first in range(0, count, 100):
        asked = [worker.arrival(f"t{name}", of(name)) for name in names[first : first + 100]]
        worker.exchange(asked=asked)
    worker.know(TENANT)
    return names


# -- overview ----------------------------------------------------------------------------------------------------------


def test_how_every_limit_stands(page: Site, app: Any, worker: TermsCaller) -> None:
    fill(worker, 5)
    worker.arrive("mail", terms(MAIL).same)
    for tenant, count in (("acme", 3), ("other", 1)):
        for number in range(count):
            worker.arrive(f"{tenant}{number}", of(tenant))
    ThrottleControl(app).limit("mail").override(7, until=3600, by="bob", why="their big day")
    ThrottleControl(app).limit("tenant", key="acme").pause(by="bob")
    head, *found = rows(page.get(""))
    assert head == "Limit Held Parked Oldest wait p95 wait Last hour State"
    assert [each.split()[0] for each in found] == ["tenant", "api", "mail"]
    assert re.fullmatch(rf"tenant 2 over 2 keys, 1 each 2 [\d.]+ s {NONE} {NONE} 1 key paused 2 keys full", found[0])
    assert re.fullmatch(rf"api 2 of 2 3 [\d.]+ s {NONE} {NONE} full", found[1])
    assert "override 7 by bob until" in found[2]
    assert "UTC (their big day), " in found[2]
    assert re.search(r"(59m \d+s|1h 0m) left", found[2])


def test_a_limit_that_two_versions_of_the_code_differ_in(page: Site, worker: TermsCaller) -> None:
    worker.know(Limit("api", 3))
    assert rows(page.get(""))[1].endswith("declared otherwise by the worker that started last")


def test_limits_of_other_groups(app: Any, worker: TermsCaller) -> None:
    def far() -> None: ...

    app.task(base=Throttled, limit=Limit("far", 1, group="eu"), name="far", shared=False)(far)
    worker.know(API)
    place = store_client(app, "eu")
    place.ask(place.store.declare("", [("far", "1")]))
    with visited(asgi(app, lambda _: "all")) as page:
        assert [each.split()[0] for each in rows(page.get(""))[1:]] == ["api", "far"]
        page.post("limit/change?name=far", {"change": "pause"})
        assert "paused" in rows(page.get(""))[1]


def test_a_limit_that_is_held_back_counts_down(page: Site, worker: TermsCaller) -> None:
    worker.send_back(worker.take("t", API), 90.0)
    assert re.search(r"held back by t until .* UTC.*, 1m (30|2\d)s left", rows(page.get(""))[1])


def test_the_filter_and_the_cut(page: Site, worker: TermsCaller) -> None:
    for number in range(12):
        worker.know(Limit(f"shop-{number}", 1))
    worker.arrive("t", terms(Limit("shop-7", 1)).same)
    cut = page.get("?most=5")
    assert "5 of 12 limits; those that need attention come first." in text(cut)
    assert [each.split()[0] for each in rows(cut)[1:]] == ["shop-7", "shop-0", "shop-1", "shop-10", "shop-11"]
    found = page.get("?find=SHOP-1&most=2")
    assert "2 of 3 limits" in text(found)
    assert "No limit has “nope” in its name." in text(page.get("?find=nope"))
    for wrong in ("0", "1001", "x", "-1", "9" * 20):
        assert page.get(f"?most={wrong}").status_code == 400


def test_nothing_to_see(page: Site) -> None:
    assert "No limits are known: no worker has declared any." in text(page.get(""))
    assert "No task has an identity lock." in text(page.get("locks"))
    assert "Nothing was changed." in text(page.get("audit"))
    report = text(page.get("report"))
    assert "nothing needs attention." in report
    assert report.count("The store is not durable") == 1
    assert [page.get(each).status_code for each in PAGES] == [200] * len(PAGES)
    assert "No task is parked." in text(page.get("limit?name=api"))


# -- a limit -----------------------------------------------------------------------------------------------------------


def test_one_limit(page: Site, worker: TermsCaller) -> None:
    """Two tasks may share it; those that this app lacks are not named."""
    for task, code in (("ours", code_of("call", {"api"})), ("theirs", code_of("other", {"api"}))):
        worker.exchange(asked=[worker.arrival(task, ONE)._replace(code=code)])
    for task in ("three", "four"):
        park(worker, task, ONE)
    answer = page.get("limit?name=api")
    assert "Held 2 of 2 Parked 2 In the code 2 permits full" in text(answer)
    found = rows(answer)
    held = r"1 permit of api aaaaaaaa queue q [\d.]+ s (9m \d+s|10m 0s)"
    assert re.fullmatch(rf"ours call {held}", found[1])
    assert re.fullmatch(rf"theirs {held}", found[2])
    assert re.fullmatch(r"1 three call api q [\d.]+ s", found[4])
    assert re.fullmatch(r"2 four call api q [\d.]+ s", found[5])


def test_hidden_rows_are_counted(page: Site, worker: TermsCaller) -> None:
    fill(worker, 5, terms(Limit("wide", 9)).same)
    shown = text(page.get("limit?name=wide&most=2"))
    assert "2 tasks; the holders of 3 more permits are not shown." in shown
    assert "not shown" not in text(page.get("limit?name=wide"))


def test_five_thousand_keys(page: Site, worker: TermsCaller) -> None:
    many(worker, 5000)
    worker.arrive("waits", of("k4321"))
    answer = page.get("limit?name=tenant")
    assert (
        "100 of 5 000 keys. Sorted: stopped first , longest line first , by name . These are the first 1 000 found."
        in text(answer).replace("\N{NO-BREAK SPACE}", " ")
    )
    assert "Held 5 000 over 5000 keys, 1 each" in text(answer).replace("\N{NO-BREAK SPACE}", " ")
    of_keys = [each for each in rows(answer) if each.startswith("k")]
    assert of_keys[0].startswith("k4321 1 of 1 1 full")
    overview = text(page.get("")).replace("\N{NO-BREAK SPACE}", " ")
    assert "5 000 over 5000 keys, 1 each 1" in overview
    assert "at least 1000 keys full" in overview


def test_one_key(page: Site, worker: TermsCaller) -> None:
    for tenant in ("acme", "other"):
        worker.arrive(f"{tenant} holds", of(tenant))
        park(worker, f"{tenant} waits", of(tenant))
    for path in ("limit?name=tenant&key=acme", "limit?name=tenant[acme]"):
        shown = text(page.get(path))
        assert "acme holds" in shown
        assert "acme waits" in shown
        assert "other waits" not in shown
        assert "other holds" not in shown


@pytest.mark.parametrize("path", ["limit?name=nope", "limit?name=api&key=x", "api/limit?name=nope", "nope", "api/nope"])
def test_missing_page(page: Site, path: str) -> None:
    answer = page.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("application/json" if path.startswith("api") else "text/html")


@pytest.mark.parametrize("path", ["limit", "api/task", "task/drop", "locks/unlock", "limit/change?name=api&change=x"])
def test_missing_parameter_is_named(page: Site, path: str) -> None:
    answer = page.get(path)
    assert answer.status_code == 400
    assert re.search(r"\?\w+= is (missing|one of)", text(answer))


# -- the others --------------------------------------------------------------------------------------------------------


def test_why_a_task_waits(page: Site, app: Any, worker: TermsCaller) -> None:
    fill_and_park(worker, 2)
    shown = text(page.get("task?id=t3"))
    assert "parked, place 2 in the line of api" in shown
    for reason in ThrottleControl(app).explain("t3").reasons:
        assert reason in shown
    assert "No worker has seen it yet, or it has ended" in text(page.get("task?id=nope"))


def test_locks_and_audit(page: Site, app: Any, worker: TermsCaller) -> None:
    worker.know(API)
    task = app.tasks["charge"].apply_async((17, 5)).id
    ThrottleControl(app).limit("api").pause(by="bob", why="incident <42>")
    assert rows(page.get("locks"))[1].startswith(f"{task} queued")
    assert rows(page.get("audit"))[1].endswith("bob pause api incident <42>")
    assert rows(page.get("audit?name=api"))[1].endswith("bob pause api incident <42>")


def test_report_shows_the_commands(page: Site, app: Any, worker: TermsCaller) -> None:
    ThrottleControl(app).limit("api").pause(by="bob")
    park(worker, "t", ONE)
    shown = text(page.get("report"))
    assert "Limit api is paused: 1 task waits" in shown
    assert "celery -A shop throttle resume api" in shown
    assert "Latency" in shown


def test_json_is_that_of_the_command(page: Site, app: Any, worker: TermsCaller) -> None:
    fill(worker, 4)
    ThrottleControl(app).limit("api").pause(by="bob", until=3600)
    for path, args in (
        ("limits", ["status"]),
        ("limit?name=api", ["show", "api"]),
        ("task?id=t3", ["explain", "t3"]),
        ("locks", ["locks"]),
        ("audit", ["audit"]),
        ("audit?name=api", ["audit", "api"]),
    ):
        ours, theirs = page.get(f"api/{path}").json(), run_in(app, *args, "--json").json
        for each in (ours, theirs):  # changes in between
            for holder in each.get("holders", ()) if isinstance(each, dict) else ():
                holder.pop("lease_left")
        assert ours == theirs
    assert page.get("api/report").json().keys() == {"at", "took", "alarms", "remarks", "unchecked"}
    assert page.get("api/doctor").json().keys() == {"stores", "findings", "unchecked", "services"}
    assert page.get("metrics").text.splitlines()[:2] == ThrottleControl(app).metrics().splitlines()[:2]


# -- live --------------------------------------------------------------------------------------------------------------


def test_the_live_part_is_sent_once(page: Site, app: Any, worker: TermsCaller) -> None:
    worker.know(API)
    for path in ("?part=live", "limit?name=api&part=live", "locks?part=live", "audit?part=live"):
        first = page.get(path)
        assert "<html" not in first.text
        again = page.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    ThrottleControl(app).limit("api").pause()
    etag = page.get("?part=live").headers["etag"]
    ThrottleControl(app).limit("api").resume()
    assert page.get("?part=live", headers={"If-None-Match": etag}).status_code == 200


def test_a_wait_that_goes_on_is_no_change(page: Site, worker: TermsCaller) -> None:
    """The script lets it go on; else every answer would be a new one where a task waits."""
    fill(worker, 3)
    first = page.get("?part=live")
    assert re.search(r"<time [^>]*>[\d.]+ s</time>", first.text)
    assert page.get("?part=live", headers={"If-None-Match": first.headers["etag"]}).status_code == 304


# -- hostile input -----------------------------------------------------------------------------------------------------


def test_hostile_names_are_only_text(page: Site, app: Any, worker: TermsCaller) -> None:
    limit = Limit(HOSTILE, 1, key="k")
    for key in KEYS:
        for task in ("<b>holds</b>", "<i>waits</i>"):
            park_or_run(worker, f"{task} {key}", terms(limit).needs({"keys": {HOSTILE: key}}))
    ThrottleControl(app).limit(HOSTILE).pause(by="<u>ana</u>", why='"><script>')
    seen = [page.get(each) for each in ("", "audit", "report", f"limit?{urlencode({'name': HOSTILE})}")]
    for key in KEYS:
        query = {"name": HOSTILE, "key": key}
        seen.append(page.get(f"limit?{urlencode(query)}"))
        assert key in text(seen[-1])
        seen.append(page.get(f"limit/change?{urlencode(query | {'change': 'pause', 'why': HOSTILE})}"))
        seen.append(page.get(f"task?{urlencode({'id': f'<i>waits</i> {key}'})}"))
        assert "parked" in text(seen[-1])
        assert page.get(f"api/limit?{urlencode(query)}").json()["status"][0]["key"] == key
    for each in seen:
        assert each.status_code == 200
        assert not re.search(r"<(b|i|u|img|script)>|<script(?! src=\"/page.js)|<img|onerror=alert\(1\)>\"", each.text)


def park_or_run(worker: TermsCaller, task: str, needs: Any) -> None:
    if worker.arrive(task, needs) is None:
        worker.put(task, needs)


def test_links_lead_to_hostile_names(page: Site, worker: TermsCaller) -> None:
    limit = Limit(HOSTILE, 1, key="k")
    for key in KEYS:
        worker.arrive(f"t {key}", terms(limit).needs({"keys": {HOSTILE: key}}))
    (link,) = re.findall(r'href="/(limit\?[^"]*)"', page.get("").text)
    found = re.findall(r'href="/(limit\?[^"]*key[^"]*)"', page.get(html.unescape(link)).text)
    assert {next(each for each in KEYS if each in text(page.get(html.unescape(link)))) for link in found} == set(KEYS)


def test_a_text_that_would_turn_a_line_around(page: Site) -> None:
    assert "\u202e" not in page.get("task?id=%E2%80%AEx%0Ay").text.split("<main")[1].split("<ul")[0].split("<h2>")[1]


# -- the store is away -------------------------------------------------------------------------------------------------


def test_the_store_is_away(own_server: EmbeddedServer) -> None:
    with visited(asgi(make_app(own_server.url), lambda _: "all")) as page:
        assert page.get("").status_code == 200
        own_server.kill()
        until(lambda: page.get("").status_code == 503, timeout=3)  # it is kept for a moment
        for path in ("", "?part=live", "limit?name=api", "task?id=t", "locks", "audit", "report"):
            answer = page.get(path)
            assert answer.status_code == 503
            assert "The store does not answer" in text(answer)
        answer = page.get("api/limits")
        assert answer.status_code == 503
        assert "the store did not answer" in json.loads(answer.text)["error"]
        own_server.restart()
        assert page.get("").status_code == 200
