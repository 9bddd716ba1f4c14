"""The first page: how every limit stands, the state of every line in which tasks wait, and the cost of reading that."""

from __future__ import annotations

import re
from typing import Any

import pytest
from redis import Redis

from celery_throttle import Limit, ThrottleControl, Throttled
from celery_throttle.clients import store_client
from celery_throttle.web import asgi, overview
from tests.control.conftest import run_in
from tests.control.hours import tell_counts
from tests.control.test_looking import API, MAIL, ONE, fill, of
from tests.store.cost import commands
from tests.store.terms_caller import TermsCaller, terms
from tests.support.incident import incident
from tests.web.conftest import Site, visited
from tests.web.test_pages import NONE, rows, text

IDLE = "no worker takes it (queue q)"
PACED = Limit("paced", key="tenant", rate="1/h")


def states_of(answer: Any) -> dict[str, list[str]]:
    """The states of each row, by its first word."""
    found: dict[str, list[str]] = {}
    for row in re.findall(r'<tr role="row">.*?</tr>', answer.text, flags=re.DOTALL)[1:]:
        items = re.findall(r"<li[^>]*>(.*?)</li>", row, flags=re.DOTALL)
        name = re.sub(r"<[^>]*>", "", row).split()[0]
        found[name] = [re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", each)).strip() for each in items]
    return found


# -- rows --------------------------------------------------------------------------------------------------------------


def test_how_every_limit_stands(page: Site, app: Any, worker: TermsCaller) -> None:
    fill(worker, 5)
    worker.arrive("mail", terms(MAIL).same)
    for tenant, count in (("acme", 3), ("other", 1)):
        for number in range(count):
            worker.arrive(f"{tenant}{number}", of(tenant))
    worker.send_back(worker.take("held", Limit("zoo", 1)), 90.0)
    ThrottleControl(app).limit("mail").override(7, until=3600, by="bob", why="their big day")
    ThrottleControl(app).limit("tenant", key="acme").pause(by="bob")
    head, *found = rows(page.get(""))
    assert head == "Limit Held Parked Oldest wait p95 wait Last hour State"
    shown = {each.split()[0]: each for each in found}
    assert list(shown) == ["tenant", "zoo", "api", "mail"]
    assert re.fullmatch(
        rf"tenant 2 over 2 keys, 1 each 2 [\d.]+ s {NONE} {NONE} 1 key paused 2 keys full", shown["tenant"]
    )
    assert re.fullmatch(rf"api 2 of 2 3 [\d.]+ s {NONE} {NONE} full", shown["api"])
    assert "override 7 by bob until" in shown["mail"]
    assert "UTC (their big day), " in shown["mail"]
    assert re.search(r"(59m \d+s|1h 0m) left", shown["mail"])
    assert re.search(r"held back by held until .* UTC.*, 1m (30|2\d)s left", shown["zoo"])


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


def test_the_oldest_wait_of_each_limit(page: Site, worker: TermsCaller) -> None:
    """Also beside more lines than a page can look at one by one."""
    worker.put("late", ONE, age=7200)
    for number in range(120):
        for task in range(2):
            worker.put(f"{number} {task}", of(str(number)))
    worker.know(Limit("idle", 1))
    found = {each.split()[0]: each for each in rows(page.get(""))[1:]}
    assert "2h 0m" in found["api"]
    assert re.search(r" 240 \d+(\.\d)? s", found["tenant"])
    assert not any("not read" in each for each in found.values())


def test_a_limit_more_is_no_call_more(page: Site, worker: TermsCaller, redis: Redis) -> None:
    """This holds where a task waits, and where one has started."""
    page.get("")
    calls = []
    for first, after in ((0, 2), (2, 60)):
        some = [Limit(f"limit-{number}", 1) for number in range(first, after)]
        tell_counts(worker, *some, at_once=3)
        for limit in some:
            for number in range(2):
                worker.arrive(f"{limit.name} {number}", terms(limit).same)
        with commands(redis) as made:
            answer = page.get(f"?most={99 - first}")  # the other one is known for a moment
        calls.append(made["evalsha"])
        assert len([each for each in rows(answer) if re.search(r"[\d.]+ s 0.0 s 3 started full", each)]) == after
    assert calls[0] == calls[1]


# -- states of lines ---------------------------------------------------------------------------------------------------


def with_paused_keys(app: Any, worker: TermsCaller) -> None:
    """A key that was paused by itself, in a limit that is paused, and one that waits for its rate."""
    for tenant in ("acme", "other"):
        worker.arrive(f"holds {tenant}", of(tenant))
        worker.arrive(f"paced {tenant}", terms(PACED).needs({"keys": {"paced": tenant}}))
    ThrottleControl(app).limit("tenant").pause(by="ana")
    ThrottleControl(app).limit("tenant", key="acme").pause(by="ben")


def test_states_of_keys_are_those_that_status_shows(page: Site, app: Any, worker: TermsCaller) -> None:
    with_paused_keys(app, worker)
    found = states_of(page.get(""))
    assert found["tenant"] == ["paused by ana", "1 key paused", "2 keys full"]
    assert found["paced"] == ["2 keys waiting for its rate"]
    assert {row[0]: row[-1].split("; ") for row in run_in(app, "status").rows[1:]} == found


def test_states_of_an_incident_are_those_that_status_shows(page: Site, app: Any, redis: Redis) -> None:
    incident(redis)
    head, *lines = run_in(app, "status").lines
    shown = {line.split()[0]: list(filter(None, line[head.index("STATE") :].split("; "))) for line in lines}
    assert states_of(page.get("")) == shown


def test_every_waiting_key_has_a_state(page: Site, worker: TermsCaller) -> None:
    """A limit whose line no worker takes stands before one whose line moves."""
    fill(worker, 5)
    worker.arrive("holds", of("acme"))
    for tenant in ("acme", "other"):
        worker.put(f"waits {tenant}", of(tenant))
    found = states_of(page.get("limit?name=tenant"))
    assert found["acme"] == ["full"]
    assert found["other"] == [IDLE]
    assert IDLE in text(page.get("limit?name=tenant&key=other"))
    worker.put("waits", terms(Limit("zoo", 1)).same)
    page.post("limit/change?name=mail", {"change": "pause"})  # it is read again
    limits = states_of(page.get(""))
    assert limits["tenant"] == ["1 key full", IDLE]
    assert list(limits).index("zoo") < list(limits).index("api")


def test_lines_beyond_the_bound_are_marked(page: Site, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "_MOST_LINES", 1)
    for name in ("one", "two"):
        worker.put(name, terms(Limit(name, 1)).same)
    assert sorted(states_of(page.get("")).values()) == [[IDLE], ["not looked at"]]
