"""Read-only views: every page, the same as JSON; hostile names, an empty store, many keys, a store that is away."""

from __future__ import annotations

import html
import json
import re
from typing import Any
from urllib.parse import urlencode

import pytest
from redis import Redis

from celery_throttle import Limit, ThrottleControl
from celery_throttle.core.task_codes import code_of
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.web import asgi, fleet
from tests.control.conftest import make_app, run_in
from tests.control.test_looking import API, ONE, TENANT, fill, fill_and_park, of, park
from tests.store.caller import KEYS as STORE
from tests.store.peek import KEY
from tests.store.terms_caller import TermsCaller, terms
from tests.support.incident import incident
from tests.support.waiting import until
from tests.web.conftest import Site, visited

PAGES = (
    *("", "limit?name=api", "task", "task?id=t3", "workers", "locks", "audit", "report"),
    "limit/change?name=api&change=pause",
)
NONE = "\N{EN DASH}"
HOSTILE = "<script>alert(1)</script>"
KEYS = ('it\'s "x"', "<img src=x onerror=alert(1)>", "../../../etc", "a&b=c#d?e%2f", "-rf", "$(reboot)`id`")


def plain(markup: str) -> str:
    """Return the text of a part of a page, without its tags."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", markup))).replace("\N{NO-BREAK SPACE}", " ")


def text(answer: Any) -> str:
    return plain(answer.text)


def rows(answer: Any) -> list[str]:
    """The rows of its tables."""
    return [plain(each).strip() for each in re.findall(r"<tr.*?</tr>", answer.text, flags=re.DOTALL)]


def many(worker: TermsCaller, count: int) -> list[str]:
    """Have a task of each of so many keys hold its permit; return the keys."""
    names = [f"k{number:04}" for number in range(count)]
    for first in range(0, count, 100):
        asked = [worker.arrival(f"t{name}", of(name)) for name in names[first : first + 100]]
        worker.exchange(asked=asked)
    worker.know(TENANT)
    return names


# -- the head line -----------------------------------------------------------------------------------------------------


def head(answer: Any) -> str:
    """The head line as it is read: which app, which store, which environment, how many alarms."""
    found = answer.text.partition('<div class="where"')[2].partition("</div>")[0].partition(">")[2]
    return plain(found).strip()


def test_every_page_names_app_store_group_and_environment(server: EmbeddedServer, worker: TermsCaller) -> None:
    park(worker, "t3", ONE)
    colours = {}
    for name in ("production", "prod-eu", "staging"):
        with visited(asgi(make_app(server.url, throttle_environment=name), lambda _: "all")) as page:
            for path in (*PAGES, "limit?name=nope") if name == "production" else [""]:
                answer = page.get(path)
                assert head(answer).startswith(f"{name} App shop Store {server.url} Group {STORE.prefix} "), path
                assert f"shop {name} · throttle</title>" in answer.text, path
            (colours[name],) = re.findall(r'<strong class="environment ([\w-]*)"', answer.text)
    assert colours["production"] == colours["prod-eu"] != colours["staging"]


def test_head_without_environment_has_no_empty_mark(page: Site) -> None:
    assert head(page.get("")).startswith("App shop Store")
    assert 'class="environment' not in page.get("").text


def test_head_masks_the_password_of_the_store() -> None:
    with visited(asgi(make_app("redis://ana:geheim@127.0.0.1:1/0"))) as page:
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


# -- a limit -----------------------------------------------------------------------------------------------------------


def test_nothing_to_see(page: Site) -> None:
    for path, words in (
        ("", "No limits are known: no worker has declared any."),
        ("locks", "No task has an identity lock."),
        ("audit", "Nothing was changed."),
        ("report", "nothing needs attention."),
        ("limit?name=api", "No task is parked."),
        ("workers", "Nothing is set aside."),
    ):
        assert words in text(page.get(path))
    assert text(page.get("report")).count("The store is not durable") == 1
    assert [page.get(each).status_code for each in PAGES] == [200] * len(PAGES)


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
    sorting = "Sorted: stopped first , longest line first , by name ."
    assert f"100 of 5 000 keys. {sorting} These are the first 1 000 found." in text(answer)
    assert "Held 5 000 over 5 000 keys, 1 each" in text(answer)
    of_keys = [each for each in rows(answer) if each.startswith("k")]
    assert of_keys[0].startswith("k4321 1 of 1 1 full")
    overview = text(page.get(""))
    assert "5 000 over 5 000 keys, 1 each 1" in overview
    assert "at least 1000 keys full" in overview


def test_a_limit_without_a_key_in_use(page: Site, worker: TermsCaller) -> None:
    """It never reads "0 over 0 keys", nor "0 of 1" as if it had no keys."""
    worker.know(TENANT)
    assert re.search(r" tenant no key in use, 1 each 0 ", text(page.get("")))
    shown = text(page.get("limit?name=tenant"))
    assert "Held no key in use, 1 each Parked 0" in shown
    assert "No key is in use." in shown
    worker.arrive("first", of("acme"))
    assert "Held 1 over 1 key, 1 each Parked 0" in text(page.get("limit?name=tenant"))


def test_one_key(page: Site, worker: TermsCaller) -> None:
    for tenant in ("acme", "other"):
        worker.arrive(f"{tenant} holds", of(tenant))
        park(worker, f"{tenant} waits", of(tenant))
    for path in ("limit?name=tenant&key=acme", "limit?name=tenant[acme]"):
        shown = text(page.get(path))
        assert set(re.findall(r"(?:acme|other) (?:holds|waits)", shown)) == {"acme holds", "acme waits"}


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


def test_locks_audit_and_report(page: Site, app: Any, worker: TermsCaller) -> None:
    task = app.tasks["charge"].apply_async((17, 5)).id
    ThrottleControl(app).limit("api").pause(by="bob", why="incident <42>")
    park(worker, "t", ONE)
    assert rows(page.get("locks"))[1].startswith(f"{task} queued")
    for path in ("audit", "audit?name=api"):
        assert rows(page.get(path))[1].endswith("bob pause api incident <42>")
    shown = text(page.get("report"))
    for words in ("Limit api is paused: 1 task waits", "celery -A shop throttle resume api", "Latency"):
        assert words in shown


def test_workers_and_queues(page: Site, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    made = incident(redis)
    answers: dict[str, set[str] | None] = {"taken": {"q", "idle"}}
    monkeypatch.setattr(fleet, "consumed", lambda _: answers["taken"])
    found = {each.split()[0]: each for each in rows(page.get("workers"))}
    assert "1 task" in found[made.works.name]
    assert "7 limits" in found[made.works.name]
    assert "lease ended" in found[made.frozen.name]
    assert found["exports"].startswith("exports 2 1h 0m no worker that answers")
    assert found["q"].endswith("yes")
    assert found["idle"].startswith("idle 0")
    assert list(found).index("exports") < list(found).index("q")
    page.post("limit/change?name=gpu", {"change": "pause"})  # it is read again
    answers["taken"] = None
    answer = page.get("workers")
    assert "not known" in next(each for each in rows(answer) if each.startswith("exports"))
    assert "no worker answered a remote control command" in text(answer)


def test_set_aside_records_are_listed(page: Site, worker: TermsCaller, redis: Redis) -> None:
    worker.put(HOSTILE, ONE)
    redis.hset(KEY["records"], HOSTILE, "not a record")
    worker.exchange(2)  # which finds it
    answer = page.get("workers")
    assert any(each.startswith(HOSTILE) for each in rows(answer)), text(answer)
    assert HOSTILE not in answer.text


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
    """A wait that goes on is no change: the script lets it go on."""
    fill(worker, 3)

    def again(path: str, first: Any) -> Any:
        return page.get(path, headers={"If-None-Match": first.headers["etag"]})

    for path in ("?part=live", "limit?name=api&part=live", "locks?part=live", "audit?part=live"):
        first = page.get(path)
        assert "<html" not in first.text
        answer = again(path, first)
        assert (answer.status_code, answer.content) == (304, b"")
    assert re.search(r"<time [^>]*>[\d.]+ s</time>", page.get("?part=live").text)
    ThrottleControl(app).limit("api").pause()
    paused = page.get("?part=live")
    ThrottleControl(app).limit("api").resume()
    assert again("?part=live", paused).status_code == 200


# -- hostile input -----------------------------------------------------------------------------------------------------


def test_hostile_names_are_only_text(page: Site, app: Any, worker: TermsCaller) -> None:
    """And links lead to them."""
    limit = Limit(HOSTILE, 1, key="k")
    for key in KEYS:
        for task in ("<b>holds</b>", "<i>waits</i>"):
            needs = terms(limit).needs({"keys": {HOSTILE: key}})
            if worker.arrive(f"{task} {key}", needs) is None:
                worker.put(f"{task} {key}", needs)
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
    (link,) = re.findall(r'href="/(limit\?[^"]*)"', seen[0].text)
    found = re.findall(r'href="/(limit\?[^"]*key[^"]*)"', page.get(html.unescape(link)).text)
    headings = [page.get(html.unescape(each)).text.partition("<h1")[2].partition("</h1>")[0] for each in found]
    assert {key for key in KEYS if any(key in plain(each) for each in headings)} == set(KEYS)


def test_a_text_that_would_turn_a_line_around(page: Site) -> None:
    assert "\u202e" not in page.get("task?id=%E2%80%AEx%0Ay").text.split("<main")[1].split("<ul")[0].split("<h2>")[1]


# -- the store is away -------------------------------------------------------------------------------------------------


def test_the_store_is_away(own_server: EmbeddedServer) -> None:
    with visited(asgi(make_app(own_server.url), lambda _: "all")) as page:
        assert page.get("").status_code == 200
        own_server.kill()
        until(lambda: page.get("").status_code == 503, timeout=3)  # it is kept for a moment
        for path in ("", "?part=live", "limit?name=api", "task?id=t", "locks", "audit", "report", "alarms"):
            answer = page.get(path)
            assert answer.status_code == 503
            assert "The store does not answer" in text(answer)
        assert head(page.get("")).endswith("check for alarms")
        answer = page.get("api/limits")
        assert answer.status_code == 503
        assert "the store did not answer" in json.loads(answer.text)["error"]
        own_server.restart()
        assert page.get("").status_code == 200
