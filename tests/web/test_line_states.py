"""Every line in which tasks wait has a state, on the first page and on the page of its limit."""

from __future__ import annotations

import re
from typing import Any

import pytest
from redis import Redis

from celery_throttle import Limit, ThrottleControl
from celery_throttle.web import overview
from tests.control.conftest import run_in
from tests.control.test_looking import fill, of
from tests.store.terms_caller import TermsCaller, terms
from tests.support.incident import incident
from tests.web.conftest import Site
from tests.web.test_pages import text

IDLE = "no worker takes it (queue q)"


def states_of(answer: Any) -> dict[str, list[str]]:
    """The states of each row, by its first word."""
    found: dict[str, list[str]] = {}
    for row in re.findall(r'<tr role="row">.*?</tr>', answer.text, flags=re.DOTALL)[1:]:
        items = re.findall(r"<li[^>]*>(.*?)</li>", row, flags=re.DOTALL)
        name = re.sub(r"<[^>]*>", "", row).split()[0]
        found[name] = [re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", each)).strip() for each in items]
    return found


def test_states_of_an_incident_are_those_that_status_shows(page: Site, app: Any, redis: Redis) -> None:
    incident(redis)
    head, *lines = run_in(app, "status").lines
    shown = {line.split()[0]: list(filter(None, line[head.index("STATE") :].split("; "))) for line in lines}
    assert states_of(page.get("")) == shown


def test_unserved_line_stands_before_lines_that_move(page: Site, worker: TermsCaller) -> None:
    fill(worker, 5)
    worker.put("waits", terms(Limit("zoo", 1)).same)
    assert list(states_of(page.get(""))) == ["zoo", "api"]


def test_every_waiting_key_has_a_state(page: Site, worker: TermsCaller) -> None:
    worker.arrive("holds", of("acme"))
    for tenant in ("acme", "other"):
        worker.put(f"waits {tenant}", of(tenant))
    found = states_of(page.get("limit?name=tenant"))
    assert found["acme"] == ["full"]
    assert found["other"] == [IDLE]
    assert IDLE in text(page.get("limit?name=tenant&key=other"))
    assert states_of(page.get(""))["tenant"] == ["1 key full", IDLE]


def test_states_of_keys_are_those_that_status_shows(page: Site, app: Any, worker: TermsCaller) -> None:
    """Also of a key that was paused by itself, in a limit that is paused, and of one that waits for its rate."""
    paced = Limit("paced", key="tenant", rate="1/h")
    for tenant in ("acme", "other"):
        worker.arrive(f"holds {tenant}", of(tenant))
        worker.arrive(f"paced {tenant}", terms(paced).needs({"keys": {"paced": tenant}}))
    limits = ThrottleControl(app)
    limits.limit("tenant").pause(by="ana")
    limits.limit("tenant", key="acme").pause(by="ben")
    found = states_of(page.get(""))
    assert found["tenant"] == ["paused by ana", "1 key paused", "2 keys full"]
    assert found["paced"] == ["2 keys waiting for its rate"]
    assert {row[0]: row[-1].split("; ") for row in run_in(app, "status").rows[1:]} == found


def test_lines_beyond_the_bound_are_marked(page: Site, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "_MOST_LINES", 1)
    for name in ("one", "two"):
        worker.put(name, terms(Limit(name, 1)).same)
    assert sorted(states_of(page.get("")).values()) == [[IDLE], ["not looked at"]]
