"""``celery throttle status``, ``show``, ``explain`` and ``top``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.message import Message
from redis import Redis

from celery_throttle import Limit, ThrottleControl, Throttled
from celery_throttle.control.cli import look
from celery_throttle.control.cli.output import span
from celery_throttle.core.policy import Needs
from celery_throttle.core.task_codes import code_of
from celery_throttle.core.wording import one_line
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.store.explain import Explanation
from celery_throttle.store.holders import Holder
from celery_throttle.store.limit_status import LimitStatus
from celery_throttle.store.parcel import pack
from celery_throttle.store.parked_tasks import Parked
from tests.control.conftest import Run, make_app, run_in
from tests.store.caller import LEASE
from tests.store.peek import expire
from tests.store.terms_caller import TermsCaller, terms

API, MAIL, TENANT = Limit("api", 2), Limit("mail", rate="1/h"), Limit("tenant", 1, key="tenant")
ONE = terms(API).same
#: Steers a terminal; JSON has it as it is.
STEERS = "two\nlines\r\x07 ünï"
MESSAGE = pack(Message("[[], {}, {}]", headers={"task": "call"}, properties={}, content_type="application/json"))


def of(tenant: str) -> Needs:
    return terms(TENANT).needs({"keys": {"tenant": tenant}})


def fill(worker: TermsCaller, count: int, needs: Needs = ONE) -> None:
    """Have the tasks t0, t1, ... arrive."""
    for number in range(count):
        worker.arrive(f"t{number}", needs)


def park(worker: TermsCaller, task: str, needs: Needs) -> None:
    worker.put(task, needs, message=MESSAGE)


def fill_and_park(worker: TermsCaller, count: int) -> None:
    """Have the tasks t0 and t1 hold the permits of a limit; so many more are parked with their messages."""
    fill(worker, 2)
    for number in range(2, 2 + count):
        park(worker, f"t{number}", ONE)


def names(of: type[Any]) -> set[str]:
    return {each.name for each in fields(of) if each.repr}


# -- status ------------------------------------------------------------------------------------------------------------


def test_how_every_limit_stands(run: Run, worker: TermsCaller) -> None:
    fill(worker, 3)
    worker.arrive("mail", terms(MAIL).same)
    worker.arrive("a0", of("acme"))
    ended = run("status")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.lines
    assert lines[0] == "LIMIT         HELD  PARKED  KEYS  RATES  STATE"
    assert lines[1] == "api         2 of 2       1               full"
    assert lines[2].startswith("mail             1       0        1/h    next start in ")
    assert lines[3:] == ["tenant  1 (1 each)       0     1         1 key full"]
    lines = run("status", "--keys").lines[5:]
    assert lines == ["LIMIT           HELD  PARKED  STATE", "tenant[acme]  1 of 1       0  full"]


def test_its_json_has_the_names_of_the_attributes(app: Any, run: Run, worker: TermsCaller) -> None:
    worker.arrive("t", ONE)
    ThrottleControl(app).limit("api").override(5, until=3600, by="ana", why=STEERS)
    (status,) = ThrottleControl(app).status()
    (row,) = run("status", "--json").json
    assert row.keys() == names(LimitStatus)
    assert {name: row[name] for name in ("name", "permits", "in_force", "held", "declared")} == {
        "name": "api", "permits": 2, "in_force": 5, "held": 1, "declared": True,
    }  # fmt: skip
    assert status.override
    assert status.override.until
    assert row["override"] == {
        "limit": "api", "by": "ana", "why": STEERS, "permits": 5, "rates": [],
        "since": status.override.since.isoformat(), "until": status.override.until.isoformat(),
    }  # fmt: skip


def test_nothing_to_see(run: Run) -> None:
    assert run("status").out == "No limits are known: no worker has declared any.\n"
    assert run("status", "--json").json == []


def test_omitted_rows_are_reported(run: Run, worker: TermsCaller) -> None:
    for each in (API, MAIL, Limit("gpu", 1)):
        worker.know(each)
    assert len(run("status").lines) == 4
    lines = run("status", "--most", "2").lines
    assert len(lines) == 4
    assert lines[-1] == "These are the first 2; --most has more."


@pytest.mark.parametrize(
    ("say", "state"),
    [
        (lambda limit: limit.pause(by="ana", why="incident 42"), "paused by ana (incident 42)"),
        (lambda limit: limit.disable(by="ana"), "disabled by ana"),
        (lambda limit: limit.override(7, by="ana"), "override 7 instead of 2 by ana"),
        (lambda limit: limit.override(1, by="ana"), "override 1 instead of 2 by ana; full"),
    ],
)
def test_status_shows_overrides(
    app: Any, run: Run, worker: TermsCaller, say: Callable[[Any], None], state: str
) -> None:
    worker.arrive("t", ONE)
    say(ThrottleControl(app).limit("api"))
    assert run("status").rows[1][3:] == [state]


def test_text_of_a_terminal() -> None:
    assert one_line("tenant[ünï]\u2028\ud800\x9b") == r"tenant[ünï]\u2028\ud800\x9b"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.44, "0.4 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1m 0s"), (3599, "59m 59s"),
        (3600, "1h 0m"), (86399, "23h 59m"), (90000, "1d 1h"), (-75, "-1m 15s"),
    ],
)  # fmt: skip
def test_how_long_something_takes(seconds: float, text: str) -> None:
    assert span(seconds) == text


# -- show --------------------------------------------------------------------------------------------------------------


def test_status_shows_holders_and_parked_tasks(app: Any, run: Run, worker: TermsCaller, redis: Redis) -> None:
    for task in ("one", "two"):
        worker.arrive(task, ONE)
    for task in ("three", "four"):
        park(worker, task, ONE)
    expire(redis, "two")
    ended = run("show", "api")
    assert (ended.code, ended.err) == (0, "")
    limits, holders, parked = (part.split("\n") for part in ended.out.strip("\n").split("\n\n"))
    assert limits == ["LIMIT    HELD  PARKED  STATE", "api    2 of 2       2  full"]
    rows = {line.split()[0]: line for line in holders}
    since = {each.task_id: f"{each.since:%Y-%m-%d %H:%M:%S} UTC" for each in ThrottleControl(app).holders()}
    assert rows["TASK"].split() == ["TASK", "HOLDS", "WORKER", "SINCE", "LEASE", "LEFT", "QUEUE"]
    assert re.fullmatch(rf"one   api    aaaaaaaa  {since['one']}  (9m \d+s|10m 0s) +q", rows["one"])
    assert re.fullmatch(rf"two   api    aaaaaaaa  {since['two']}  ended \d+d \d+h ago +q", rows["two"])
    came = [f"{each.since:%Y-%m-%d %H:%M:%S} UTC".split() for each in ThrottleControl(app).parked("api")]
    assert [line.split() for line in parked] == [
        ["PLACE", "TASK", "NAME", "LINE", "SINCE", "QUEUE"],
        ["1", "three", "call", "api", *came[0], "q"],
        ["2", "four", "call", "api", *came[1], "q"],
    ]


def test_which_tasks_hold(run: Run, worker: TermsCaller) -> None:
    """Two may share a limit; tasks that this app lacks are not named."""
    for task, code in (("ours", code_of("call", {"api"})), ("theirs", code_of("other", {"api"}))):
        assert worker.exchange(asked=[worker.arrival(task, ONE)._replace(code=code)]).asked == (1,)
    holders = run("show", "api").out.strip("\n").split("\n\n")[1].split("\n")
    rows = {line.split()[0]: line for line in holders}
    assert rows["TASK"].split()[:3] == ["TASK", "NAME", "HOLDS"]
    assert rows["ours"].split()[:3] == ["ours", "call", "api"]
    assert rows["theirs"].split()[:2] == ["theirs", "api"]
    assert {each["task_id"]: each["task_name"] for each in run("show", "api", "--json").json["holders"]} == {
        "ours": "call",
        "theirs": None,
    }


@pytest.fixture
def both(app: Any, worker: TermsCaller) -> Any:
    """A task with two limits, one of them with keys: one call holds, two wait."""
    tenant, api = Limit("tenant", 1, key="tenant_id"), Limit("api", 2)

    def call(tenant_id: object) -> None: ...

    task = app.task(base=Throttled, limit=[api, tenant], name="both", shared=False)(call)
    needs = terms(tenant, api).needs({"keys": {"tenant": "acme"}})
    assert worker.arrive("t0", needs)
    park(worker, "t1", needs)
    assert worker.arrive("alone", ONE)
    park(worker, "t2", ONE)
    return task


def test_show_a_task_lists_all_its_limits(run: Run, both: Any) -> None:
    ended = run("show", "both")
    assert (ended.code, ended.err) == (0, "")
    blank = [number for number, line in enumerate(ended.lines) if not line]
    assert [row[0] for row in ended.rows[1 : blank[0]]] == ["tenant", "tenant[acme]", "api"]
    found = run("show", both.name, "--json").json
    shown = [(each["name"], each["key"]) for each in found["status"]]
    assert shown == [("tenant", None), ("tenant", "acme"), ("api", None)]
    assert sorted(each["task_id"] for each in found["holders"]) == ["alone", "t0"]
    assert sorted(each["task_id"] for each in found["parked"]) == ["t1", "t2"]
    only = run("show", "both", "--key", "acme", "--json").json
    assert [(each["name"], each["key"]) for each in only["status"]] == [("tenant", "acme")]
    assert [each["task_id"] for each in only["holders"]] == ["t0"]


def test_a_task_of_one_limit_is_shown_as_that(run: Run, worker: TermsCaller) -> None:
    worker.arrive("t", ONE)
    assert run("show", "call").out == run("show", "api").out
    assert run("history", "call").out == run("history", "api").out


def test_history_and_audit_of_a_task(app: Any, run: Run, both: Any) -> None:
    throttle = ThrottleControl(app)
    throttle.limit("api").pause(by="ana")
    throttle.limit("tenant", key="acme").pause(by="bob")
    throttle.limit("tenant", key="acme").resume(by="bob")
    assert [row[1] for row in run("audit", "both").rows[1:]] == ["bob", "bob", "ana"]
    lines = run("history", "both").lines
    assert [each for each in lines if each.startswith("limit ")] == ["limit tenant", "limit api"]
    assert [each["limit"] for each in run("history", "both", "--json").json] == ["tenant", "api"]
    assert len(throttle.audit(both)) == len(throttle.audit("both")) == 3
    assert {each.task_id for each in throttle.holders(both)} == {"t0", "alone"}
    assert {each.task_id for each in throttle.parked(both)} == {"t1", "t2"}
    assert [repr(each) for each in throttle.limits(both)] == ["<LimitControl tenant>", "<LimitControl api>"]
    assert [repr(each) for each in throttle.limits("both", key="x")] == ["<LimitControl tenant[x]>"]
    assert [repr(each) for each in throttle.limits("api")] == ["<LimitControl api>"]


def test_show_as_json(run: Run, worker: TermsCaller) -> None:
    worker.arrive("one", terms(API, cost=2).same)
    park(worker, "two", ONE)
    shown = run("show", "api", "--json").json
    assert shown.keys() == {"status", "holders", "parked"}
    (status,), (holder,), (parked,) = shown["status"], shown["holders"], shown["parked"]
    assert (status.keys(), holder.keys(), parked.keys()) == (names(LimitStatus), names(Holder), names(Parked))
    assert (holder["task_id"], holder["needs"]) == ("one", [{"limit": "api", "key": None, "permits": 2}])
    assert 0 < holder["lease_left"] <= LEASE
    assert (parked["task_id"], parked["task_name"], parked["place"]) == ("two", "call", 1)


def test_several_permits_are_counted(run: Run, worker: TermsCaller) -> None:
    worker.arrive("one", terms(API, cost=2).same)
    assert "2 x api" in run("show", "api").out


def test_a_limit_with_keys(run: Run, worker: TermsCaller) -> None:
    for tenant in ("acme", "other"):
        worker.arrive(f"{tenant} holds", of(tenant))
        park(worker, f"{tenant} waits", of(tenant))
    text = run("show", "tenant").out
    assert [row[0] for row in run("show", "tenant").rows[1:4]] == ["tenant", "tenant[acme]", "tenant[other]"]
    assert all(f"{tenant} {does}" in text for tenant in ("acme", "other") for does in ("holds", "waits"))
    for args in (["tenant", "--key", "acme"], ["tenant[acme]"]):
        text = run("show", *args).out
        assert text.splitlines()[1].startswith("tenant[acme]  1 of 1")
        assert "acme waits" in text
        assert "other" not in text


def test_a_name_that_is_written_like_a_key(run: Run, worker: TermsCaller) -> None:
    worker.arrive("t", terms(Limit("tenant[acme]", 7)).same)
    assert run("show", "tenant[acme]").rows[1][1] == "1 of 7"
    missing = run("show", "tenant]acme[")
    assert missing.code == 1


def test_show_without_holders_and_parked_tasks(run: Run) -> None:
    assert run("show", "api").out.endswith("\nNo task holds a permit.\n\nNo task waits in its line.\n")


def test_as_many_as_wanted(run: Run, worker: TermsCaller) -> None:
    fill(worker, 5)
    out = run("show", "api", "--most", "2").out
    assert out.count("These are the first 2; --most has more.") == 2
    assert ("t3" in out, "t4" in out) == (True, False)


# -- explain -----------------------------------------------------------------------------------------------------------


def test_why_it_waits(app: Any, run: Run, worker: TermsCaller) -> None:
    fill(worker, 4)
    ended = run("explain", "t3")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == f"{ThrottleControl(app).explain('t3')}\n"
    assert "Limit api is full: 2 of 2 permits are held." in ended.lines
    shown = run("explain", "t3", "--json").json
    assert shown.keys() == names(Explanation)
    assert (shown["state"], shown["place"], shown["limits"][0]["name"]) == ("parked", 2, "api")


def test_explain_of_an_unknown_task(run: Run) -> None:
    assert run("explain", "nope").code == 1
    ended = run("explain", "nope", "--json")
    assert (ended.code, ended.json["state"]) == (1, "unknown")


# -- top ---------------------------------------------------------------------------------------------------------------


def test_the_longest_line_comes_first(run: Run, worker: TermsCaller) -> None:
    worker.arrive("a", ONE)
    fill(worker, 2, terms(Limit("zoo", 1)).same)
    ended = run("top", "--times", "1")
    assert ended.lines[0].endswith(" UTC")
    assert [row[0] for row in ended.rows[2:]] == ["zoo", "api"]
    assert [row[0] for row in run("top", "--times", "1", "--most", "1").rows[2:-1]] == ["zoo"]


def test_a_limit_with_keys_comes_in_top_where_their_sum_belongs(run: Run, worker: TermsCaller) -> None:
    """Also where none of its keys is among the rows."""
    fill(worker, 3, terms(Limit("zoo", 1)).same)
    for number in range(4):
        worker.put(f"w{number}", of(f"k{number}"))
    rows = run("top", "--times", "1", "--most", "2").rows
    assert [row[:4] for row in rows[2:4]] == [["tenant", "0 (1 each)", "4", "4"], ["zoo", "1 of 1", "2", "full"]]


def test_each_look_is_a_line_of_json(run: Run, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        worker.arrive(f"t{len(waited)}", ONE)

    monkeypatch.setattr(look, "time", SimpleNamespace(sleep=sleep))
    worker.know(API)
    ended = run("top", "--times", "3", "--every", "1m30s", "--json")
    assert [json.loads(line)[0]["held"] for line in ended.lines] == [0, 1, 2]
    assert waited == [90, 90]


def test_it_goes_on_while_the_store_is_away(own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app(own_server.url)
    changes = iter([own_server.kill, own_server.restart])
    monkeypatch.setattr(look, "time", SimpleNamespace(sleep=lambda _: next(changes)()))
    ended = run_in(app, "top", "--times", "3")
    assert ended.code == 0
    assert ended.err.count("the store did not answer") == 1
    assert ended.out.count("No limits are known") == 2


def test_it_ends_with_ctrl_c(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(look, "time", SimpleNamespace(sleep=interrupt))
    ended = run("top")
    assert (ended.code, ended.err) == (0, "")
