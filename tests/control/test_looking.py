"""``celery throttle show``, ``explain`` and ``top``, the keys of a limit, and what most tests of this folder use."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.message import Message
from redis import Redis

from celery_throttle import ConfigurationError, Limit, ThrottleControl
from celery_throttle.control import reader
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
from tests.control.conftest import Run, add_task, make_app, run_in
from tests.store.caller import LEASE
from tests.store.peek import expire
from tests.store.terms_caller import TermsCaller, terms

API, MAIL, TENANT = Limit("api", 2), Limit("mail", rate="1/h"), Limit("tenant", 1, key="tenant")
ONE = terms(API).same
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


def test_show_lists_holders_and_parked_tasks(
    control: ThrottleControl, run: Run, worker: TermsCaller, redis: Redis
) -> None:
    assert run("show", "api").out.endswith("\nNo task holds a permit.\n\nNo task waits in its line.\n")
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
    since = {each.task_id: f"{each.since:%Y-%m-%d %H:%M:%S} UTC" for each in control.holders()}
    assert rows["TASK"].split() == ["TASK", "HOLDS", "WORKER", "SINCE", "LEASE", "LEFT", "QUEUE"]
    assert re.fullmatch(rf"one   api    aaaaaaaa  {since['one']}  (9m \d+s|10m 0s) +q", rows["one"])
    assert re.fullmatch(rf"two   api    aaaaaaaa  {since['two']}  ended \d+d \d+h ago +q", rows["two"])
    came = [f"{each.since:%Y-%m-%d %H:%M:%S} UTC".split() for each in control.parked("api")]
    assert [line.split() for line in parked] == [
        ["PLACE", "TASK", "NAME", "LINE", "SINCE", "QUEUE"],
        ["1", "three", "call", "api", *came[0], "q"],
        ["2", "four", "call", "api", *came[1], "q"],
    ]
    out = run("show", "api", "--most", "1").out
    assert out.count("These are the first 1; there may be more: see --most.") == 3, "of each table"
    assert ("three" in out, "four" in out) == (True, False)


def test_show_names_what_ends_the_wait_of_a_parked_task(run: Run, worker: TermsCaller) -> None:
    for task in ("one", "two"):
        worker.arrive(task, ONE)
    waits = {"a": (60_000, 90_000), "b": (90_000, 60_000), "c": (None, None)}
    for task, (wait_ms, expires_ms) in waits.items():
        worker.put(task, ONE, wait_ms=wait_ms, expires_ms=expires_ms)
    ends = {"a": "start_deadline", "b": "expires", "c": None}
    found = {each["task_id"]: each for each in run("show", "api", "--json").json["parked"]}
    assert {task: each["wait_ends_by"] for task, each in found.items()} == ends
    header, *rows = run("show", "api").out.strip("\n").split("\n\n")[2].split("\n")
    assert "WAITS UNTIL" in header
    assert [re.findall(r"UTC \((\w+)\)", row) for row in rows] == [["start_deadline"], ["expires"], []]


def test_show_names_the_task_of_a_holder(run: Run, worker: TermsCaller) -> None:
    """Two may share a limit; tasks that this app lacks are not named."""
    for task, code in (("ours", code_of("call", {"api"})), ("theirs", code_of("other", {"api"}))):
        assert worker.exchange(asked=[worker.arrival(task, ONE)._replace(code=code)]).asked == (1,)
    holders = run("show", "api").out.strip("\n").split("\n\n")[1].split("\n")
    rows = {line.split()[0]: line for line in holders}
    assert rows["TASK"].split()[:3] == ["TASK", "NAME", "HOLDS"]
    assert rows["ours"].split()[:3] == ["ours", "call", "api"]
    assert rows["theirs"].split()[:2] == ["theirs", "api"]
    holders = run("show", "api", "--json").json["holders"]
    assert {each["task_id"]: each["task_name"] for each in holders} == {"ours": "call", "theirs": None}


def test_show_as_json(run: Run, worker: TermsCaller) -> None:
    worker.arrive("one", terms(API, cost=2).same)
    park(worker, "two", ONE)
    assert "2 x api" in run("show", "api").out
    shown = run("show", "api", "--json").json
    assert shown.keys() == {"status", "holders", "parked"}
    (status,), (holder,), (parked,) = shown["status"], shown["holders"], shown["parked"]
    assert (status.keys(), holder.keys(), parked.keys()) == (names(LimitStatus), names(Holder), names(Parked))
    assert (holder["task_id"], holder["needs"]) == ("one", [{"limit": "api", "key": None, "permits": 2}])
    assert 0 < holder["lease_left"] <= LEASE
    assert (parked["task_id"], parked["task_name"], parked["place"]) == ("two", "call", 1)


def test_a_task_stands_for_all_its_limits(app: Any, control: ThrottleControl, run: Run, worker: TermsCaller) -> None:
    tenant = Limit("tenant", 1, key="tenant_id")
    both = add_task(app, "both", API, tenant)
    needs = terms(tenant, API).needs({"keys": {"tenant": "acme"}})
    for task, wanted in (("t0", needs), ("t1", needs), ("alone", ONE), ("t2", ONE)):
        worker.arrive(task, wanted)
    ended = run("show", "both")
    assert (ended.code, ended.err) == (0, "")
    assert [row[0] for row in ended.rows[1 : ended.lines.index("")]] == ["tenant", "tenant[acme]", "api"]
    found = run("show", "both", "--json").json
    shown = [(each["name"], each["key"]) for each in found["status"]]
    assert shown == [("tenant", None), ("tenant", "acme"), ("api", None)]
    assert sorted(each["task_id"] for each in found["holders"]) == ["alone", "t0"]
    assert sorted(each["task_id"] for each in found["parked"]) == ["t1", "t2"]
    only = run("show", "both", "--key", "acme", "--json").json
    assert [(each["name"], each["key"]) for each in only["status"]] == [("tenant", "acme")]
    assert [each["task_id"] for each in only["holders"]] == ["t0"]
    control.limit("api").pause(by="ana")
    control.limit("tenant", key="acme").pause(by="bob")
    control.limit("tenant", key="acme").resume(by="bob")
    assert [row[1] for row in run("audit", "both").rows[1:]] == ["bob", "bob", "ana"]
    assert [each for each in run("history", "both").lines if each.startswith("limit ")] == ["limit tenant", "limit api"]
    assert [each["limit"] for each in run("history", "both", "--json").json] == ["tenant", "api"]
    for meant in (both, "both"):
        assert len(control.audit(meant)) == 3
        assert {each.task_id for each in control.holders(meant)} == {"t0", "alone"}
        assert {each.task_id for each in control.parked(meant)} == {"t1", "t2"}
        assert [repr(each) for each in control.limits(meant)] == ["<LimitControl tenant>", "<LimitControl api>"]
    assert [repr(each) for each in control.limits("both", key="x")] == ["<LimitControl tenant[x]>"]
    assert [repr(each) for each in control.limits("api")] == ["<LimitControl api>"]


def test_a_task_of_one_limit_stands_for_that(control: ThrottleControl, run: Run, worker: TermsCaller) -> None:
    worker.arrive("t", ONE)
    for command in ("show", "history"):
        by_task, by_limit = (re.sub(r"[\d:ms ]+", " ", run(command, name).out) for name in ("call", "api"))
        assert by_task == by_limit, "but for the time that has passed"
    assert run("set", "call", "7").rows[1][0] == "api"
    assert control.limit("call").status().in_force == 7
    assert run("show", "serve", "--key", "acme").rows[1][0] == "tenant[acme]"


def test_show_a_limit_with_keys(run: Run, worker: TermsCaller) -> None:
    for tenant in ("acme", "other"):
        worker.arrive(f"{tenant} holds", of(tenant))
        park(worker, f"{tenant} waits", of(tenant))
    ended = run("show", "tenant")
    assert [row[0] for row in ended.rows[1:4]] == ["tenant", "tenant[acme]", "tenant[other]"]
    assert all(f"{tenant} {does}" in ended.out for tenant in ("acme", "other") for does in ("holds", "waits"))
    for args in (["tenant", "--key", "acme"], ["tenant[acme]"]):
        text = run("show", *args).out
        assert text.splitlines()[1].startswith("tenant[acme]  1 of 1")
        assert "acme waits" in text
        assert "other" not in text
    worker.arrive("t", terms(Limit("tenant[acme]", 7)).same)
    assert run("show", "tenant[acme]").rows[1][1] == "1 of 7", "the name of a limit comes first"
    assert run("show", "tenant]acme[").code == 1


def test_stopped_and_crowded_keys_come_first(
    control: ThrottleControl, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tenant, count in (("quiet", 1), ("busy", 4), ("some", 2)):
        for number in range(count):
            worker.arrive(f"{tenant}{number}", of(tenant))
    worker.arrive("t", ONE)
    limit = control.limit("tenant")
    control.limit("tenant", key="gone").pause()
    found = limit.keys()
    assert [each.key for each in found.rows] == ["gone", "busy", "some", "quiet"]
    assert [each.parked for each in found.rows] == [0, 3, 1, 0]
    assert (found.known, found.cut) == (4, False)
    fewer = limit.keys(most=2)
    assert ([each.key for each in fewer.rows], fewer.known) == (["gone", "busy"], 4)
    for without in (control.limit("api"), control.limit("tenant", key="quiet")):
        assert (without.keys().rows, without.keys().known) == ((), 0)
    with pytest.raises(ConfigurationError, match="most must be"):
        limit.keys(most=0)
    monkeypatch.setattr(reader, "_NAMES", 4)
    assert (limit.keys().known, limit.keys().cut) == (4, True)


def test_parked_tasks_of_more_keys_than_a_page_are_all_listed(control: ThrottleControl, worker: TermsCaller) -> None:
    worker.know(TENANT)
    limit = control.limit("tenant")
    limit.pause()
    for number in range(350):
        worker.put(f"t{number}", of(f"k{number}"))
    assert len({each.task_id for each in limit.parked(most=1000)}) == len(control.parked(most=1000)) == 350
    assert len(limit.parked(most=101)) == 101


def test_explain(control: ThrottleControl, run: Run, worker: TermsCaller) -> None:
    fill(worker, 4)
    ended = run("explain", "t3")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == f"{control.explain('t3')}\n"
    assert "Limit api is full: 2 of 2 permits are held." in ended.lines
    shown = run("explain", "t3", "--json").json
    assert shown.keys() == names(Explanation)
    assert (shown["state"], shown["place"], shown["limits"][0]["name"]) == ("parked", 2, "api")
    assert run("explain", "nope").code == 1
    ended = run("explain", "nope", "--json")
    assert (ended.code, ended.json["state"]) == (1, "unknown")


def test_top_begins_with_the_longest_line(run: Run, worker: TermsCaller) -> None:
    """The line of a limit is that of all its keys, also where none of them is among the rows."""
    worker.arrive("a", ONE)
    fill(worker, 3, terms(Limit("zoo", 1)).same)
    ended = run("top", "--times", "1")
    assert ended.lines[0].endswith(" UTC")
    assert [row[0] for row in ended.rows[2:]] == ["zoo", "api"]
    for number in range(4):
        worker.put(f"w{number}", of(f"k{number}"))
    rows = run("top", "--times", "1", "--most", "2").rows
    assert [row[:4] for row in rows[2:-1]] == [["tenant", "0 (1 each)", "4", "4"], ["zoo", "1 of 1", "2", "full"]]


def test_each_look_of_top_is_a_line_of_json(run: Run, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        worker.arrive(f"t{len(waited)}", ONE)

    monkeypatch.setattr(look, "time", SimpleNamespace(sleep=sleep))
    worker.know(API)
    ended = run("top", "--times", "3", "--every", "1m30s", "--json")
    assert [json.loads(line)[0]["held"] for line in ended.lines] == [0, 1, 2]
    assert waited == [90, 90]


def test_top_goes_on_without_the_store_until_ctrl_c(
    own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    changes = iter([own_server.kill, own_server.restart, interrupt])
    monkeypatch.setattr(look, "time", SimpleNamespace(sleep=lambda _: next(changes)()))
    ended = run_in(make_app(own_server.url), "top")
    assert ended.code == 0
    assert (ended.err.count("the store did not answer"), len(ended.err.splitlines())) == (1, 1)
    assert ended.out.count("No limits are known") == 2
