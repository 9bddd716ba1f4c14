"""``celery throttle report``: one verdict."""

from __future__ import annotations

import re
import shlex
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis

from celery_throttle import ConfigurationError, Limit, ThrottleControl
from celery_throttle.control import checks, lines
from celery_throttle.control.checks import CHECKS, Checked, Report
from celery_throttle.control.cli.session import typed_before
from celery_throttle.control.findings import KINDS, Commands, Finding, in_order
from celery_throttle.core.buckets import Bucket
from tests.control.conftest import Run
from tests.control.desk_story import DeskStory, be_held_for
from tests.control.test_looking import API, ONE, fill, names, of
from tests.control.test_shell import FEATURES
from tests.store.cost import commands
from tests.store.peek import KEY, peek
from tests.store.stories import stories
from tests.store.terms_caller import TermsCaller, terms
from tests.support.shell import Shell
from tests.support.workers import ROOT

pytestmark = pytest.mark.usefixtures("workers_answer")

HOUR = 3600.0

OVERRIDES = """
a pause is an alarm once a task has waited for too long:
    deploy gpu:1; change gpu pause; report = paused gpu; park t1 age=60; report = paused gpu; park t2 age=3600
    report = PAUSED gpu; report patience=7200 = paused gpu; change gpu resume; look slots=9; report = -
a limit that is not enforced is a remark:
    deploy gpu:1; change gpu disable; report = disabled gpu; change gpu enable; report = -
a limit that is not enforced is an alarm if more run than the code allows:
    deploy gpu:2; change gpu disable; take a b c on=gpu:2; report = DISABLED gpu
    what = Limit gpu is not enforced: 3 run of gpu, the code allows 2.; advice = celery -A proj throttle enable gpu
a pause of all keys is reported once, and that of one key beside it:
    park a on=tenant[a]:1 age=3600; park b on=tenant[b]:1 age=3601; change tenant pause; report = PAUSED tenant
    what = Limit tenant is paused: 2 tasks wait, the first for 1h 0m.
    change tenant/a pause; report = PAUSED tenant, PAUSED tenant/a
a hold is an alarm once the first of its line, which was sent back, has waited for too long:
    take t; send_back t pause=3600; report = held-back gpu; park t2 age=3600; report = held-back gpu
    report patience=0 = HELD-BACK gpu; advice = celery -A proj throttle release-hold gpu
fewer permits are an alarm if a task waits:
    take t1 on=gpu:2; change gpu override 7; report = overridden gpu; change gpu override 1; report = overridden gpu
    park t2 on=gpu:2 age=3600; report = OVERRIDDEN gpu; advice = celery -A proj throttle reset gpu
    what = Limit gpu has 1 instead of 2: 1 task waits, the first for 1h 0m.
more permits than the code has are no alarm:
    deploy gpu:2; change gpu override 3; take a b c on=gpu:2; park waits on=gpu:2 age=3600
    report = overridden gpu, full gpu
a slower rate is an alarm that names its author:
    take a on=mail@60/h; park b c on=mail@60/h age=3600; change mail override rate=1/h by=ana why=incident
    report = OVERRIDDEN mail, rate mail; advice = celery -A proj throttle reset mail
    what = Limit mail has the rate 1/h instead of 60/h: 2 tasks wait, the first for 1h 0m.
    reason = Overridden since TIME by ana, because: incident.
    change mail override rate=70/h; report = overridden mail, rate mail; advice = -
"""

LINES = """
full for a moment is nothing:
    take one two on=gpu:2; park waits on=gpu:2 age=60; report = -
full and busy is a remark:
    take one two on=gpu:2; park waits on=gpu:2 age=3600; held_for one 7200; report = full gpu
    what = Limit gpu is full: 1 task waits, the first for 1h 0m, its last start was TIME ago.
    reason = Limit gpu is full: 2 of 2 permits are held. Task one has held longest, since TIME, on worker aaaaaaaa.
    advice = celery -A proj throttle show gpu | celery -A proj throttle set --dry-run gpu 3
full where nothing starts is an alarm:
    take one two on=gpu:2; park waits on=gpu:2 age=3600; held_for one 10800; held_for two 7200; report = STUCK gpu
    what = Limit gpu is full, and nothing has started on it for 2h 0m: 1 task waits, the first for 1h 0m.
    reason = Limit gpu is full: 2 of 2 permits are held. Task one has held longest, since TIME, on worker aaaaaaaa.
a task that needs more than is free is an alarm if nothing starts:
    take one on=gpu:2; park waits on=gpu:2 cost=2 age=3600; held_for one 3600; report = STUCK gpu
keys that are full are one finding:
    take a on=tenant[a]:1; take b on=tenant[b]:1; take c on=tenant[c]:1; park a2 on=tenant[a]:1 age=3600
    park b2 on=tenant[b]:1 age=3660; park c2 on=tenant[c]:1 age=3720; report = full tenant/c; waits = 3
    what = Limit tenant[c] is full: 1 task waits, the first for 1h 2m, its last start was TIME ago. The same holds ...
    what last = The same holds for 2 more keys of tenant.
a rate is a remark:
    take t on=mail@1/h; park waits on=mail@1/h age=3600; report = rate mail
    reason = The rate of limit mail (1/h) allows the next start in TIME.
unused room is an alarm:
    park t age=3600; report = NO-SLOT gpu; advice = celery -A proj worker -Q q
    what = Limit gpu has room, but the first of its line, t, does not start: 1 task waits, the first for 1h 0m.
a queue without a consumer is an alarm, but not that of a caller outside of tasks:
    stranger: park t age=3600; park apart age=3600 queue=~4711 outside; report = NO-WORKER q2; waits = 1
    advice = celery -A proj worker -Q q2
holders whose leases have ended are an alarm until they are reclaimed:
    take a b c d e on=many:9; expire a b c d e; report = LOST; advice = celery -A proj throttle reap
    what = Workers that are lost or cut off from the store still hold permits for 5 tasks: a, b, c and 2 more.
    reap; report = -
"""


@pytest.mark.parametrize("steps", stories(OVERRIDES, LINES))
def test_a_story_of_findings(desk: DeskStory, steps: str) -> None:
    desk.tell(steps)


def told(control: ThrottleControl, **options: Any) -> list[Finding]:
    verdict = control.report(**options)
    return [*verdict.alarms, *verdict.remarks]


def test_report_without_a_finding(control: ThrottleControl, run: Run, worker: TermsCaller, redis: Redis) -> None:
    """That the tests' server keeps nothing is a finding of `doctor`."""
    worker.arrive("t", ONE)
    assert told(control) == []
    ended = run("report")
    assert (ended.code, ended.err) == (0, "")
    assert re.fullmatch(r"[0-9-]{10} [0-9:]{8} UTC: nothing needs attention\.", ended.out.rstrip())
    before, _ = redis.time()
    verdict = control.report()
    assert before <= verdict.at.timestamp() <= redis.time()[0] + 1, "the time of the store"
    assert 0 < verdict.took < 60


def test_report_shows_finding_reason_and_action(control: ThrottleControl, run: Run, worker: TermsCaller) -> None:
    worker.know(API)
    control.limit("api").pause(by="ana", why="incident 42")
    for task, age in (("t0", 2 * HOUR), ("t1", HOUR)):
        worker.put(task, ONE, age=age)
    said = control.limit("api").status().paused
    assert said
    ended = run("report")
    assert (ended.code, ended.lines[0][-14:]) == (1, " UTC: 1 alarm.")
    assert ended.lines[1:4] == [
        "! Limit api is paused: 2 tasks wait, the first for 2h 0m.",
        f"  why: Paused since {said.since:%Y-%m-%d %H:%M:%S} UTC by ana, because: incident 42.",
        "  do:  celery -A proj throttle resume api",
    ]
    ended = run("report", "--json")
    assert (ended.code, ended.json.keys(), ended.json["remarks"]) == (1, names(Report), [])
    (alarm,) = ended.json["alarms"]
    assert alarm.keys() == names(Finding)
    assert (alarm["kind"], alarm["limit"], alarm["waits"]) == ("paused", "api", 2)
    assert alarm["do"] == ["celery -A proj throttle resume api"]


def test_the_same_state_is_the_same_verdict(desk: DeskStory, control: ThrottleControl) -> None:
    desk.tell("""
        park t0 on=a0:1; park t1 on=a1:1 age=3600; park t2 on=a2:1 age=7200; take gone on=api:2; expire gone
        change a0 pause; change a1 pause; change a2 pause; change api override 9
        report patience=60 = LOST, PAUSED a2, PAUSED a1, paused a0, overridden api""")
    first, second = (told(control, patience=each) for each in (60, timedelta(minutes=1)))
    assert [each.do for each in first] == [each.do for each in second]


def test_every_kind_and_check_has_its_place() -> None:
    found = [Finding(kind, False, kind) for kind in reversed(KINDS)]
    assert [each.kind for each in in_order(found)] == list(KINDS)
    page = (ROOT / "docs" / "reference" / "findings.md").read_text()
    rows = [f"| {each.looks_at} |{' yes' * each.now} |{' yes' * each.set_up} |" for each in CHECKS]
    assert "\n".join(rows) in page


@pytest.mark.parametrize("patience", [-1, True, "10m", None, float("nan")])
def test_patience_that_is_none(control: ThrottleControl, patience: Any) -> None:
    with pytest.raises(ConfigurationError, match="patience must be seconds"):
        control.report(patience=patience)


def test_command_can_be_pasted_for_any_names(control: ThrottleControl, run: Run, worker: TermsCaller) -> None:
    key = 'a b\'; rm -rf "$HOME" #'
    worker.put("t", of(key), age=HOUR)
    control.limit("tenant", key=key).pause()
    (found,) = told(control)
    words = shlex.split(found.do[0])
    assert words[:4] == ["celery", "-A", "proj", "throttle"]
    assert run(*words[4:]).code == 0
    assert control.limit("tenant", key=key).status().paused is None
    begin = Commands("celery", ("--url", "redis://x"))
    assert begin.throttle("resume", Bucket("--yes", "-k")) == "celery throttle resume --url redis://x --key=-k -- --yes"
    words = shlex.split(begin.throttle("set", Bucket("-x"), "3", options=[("dry-run", None)]))
    assert words[4:] == ["redis://x", "--dry-run", "--", "-x", "3"]
    assert begin.worker("a b") == "celery -A proj worker -Q 'a b'"


def test_partly_read_holders_are_not_stuck(desk: DeskStory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the others may have started just now."""
    monkeypatch.setattr(lines, "MOST", 1)
    desk.tell("""
        take one two on=gpu:2; park waits on=gpu:2 age=3600; held_for one 3600; held_for two 3600; report = full gpu
        what = Limit gpu is full: 1 task waits, the first for 1h 0m.""")


def test_a_limit_that_no_worker_has_declared(control: ThrottleControl, worker: TermsCaller, redis: Redis) -> None:
    worker.put("t", ONE, age=HOUR)
    redis.hdel(KEY["limits"], "api")
    (found,) = told(control)
    assert (found.kind, found.alarm, found.do) == ("undeclared", True, ("celery -A proj worker -Q q",))
    assert control.explain("t").reasons[0] == "No worker has declared limit api."


def test_room_that_is_taken_in_a_moment(desk: DeskStory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_throttle.control.causes.time.sleep", lambda _: desk.look(slots=1))
    desk.tell("park t age=3600; report = -")


def test_unreachable_workers_are_reported(
    control: ThrottleControl, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(checks, "consumed", asked.append)
    assert (control.report().unchecked, asked) == ((), []), "no worker is asked where no task waits"
    fill(worker, 3)
    verdict = control.report(patience=0)
    assert verdict.unchecked == (
        "Which queues the workers consume: none answered a remote control command within a second.",
    )
    assert "no-worker" not in [each.kind for each in verdict.alarms]


def test_missing_data_gives_no_finding(desk: DeskStory, redis: Redis) -> None:
    """For a moment after the store lost its data holders are missing in it."""
    redis.hset(KEY["meta"], "settling", f"{peek(redis).now + 60_000:.0f}")
    desk.tell("park t age=3600; change gpu pause; report = SETTLING")


def test_it_costs_no_more_where_there_is_more(control: ThrottleControl, worker: TermsCaller, redis: Redis) -> None:
    """The longest wait is looked at first, however many keys of a paused limit wait."""
    control.limit("tenant").pause()
    for task in ("one", "two"):
        worker.take(task, ONE)
        be_held_for(redis, task, 2 * HOUR)
    worker.put("late", ONE, age=HOUR)
    for number in range(300):
        worker.put(f"t{number}", of(f"k{number}"))
        worker.put(f"u{number}", of(f"k{number}"))
    control.report()
    with commands(redis) as calls:
        verdict = control.report()
    assert calls["evalsha"] < 200
    (stuck,) = [each for each in verdict.alarms if each.kind == "stuck"]
    assert (stuck.limit, stuck.waits) == ("api", 1)


def test_a_limit_is_not_hidden_by_keys(
    desk: DeskStory, control: ThrottleControl, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        worker.put(f"t{number}", of(f"k{number}"))
    desk.tell("park t age=3600; change gpu pause")
    monkeypatch.setattr(lines, "MOST", 5)
    assert desk.report().startswith("PAUSED gpu")
    (unchecked,) = control.report().unchecked
    assert unchecked.endswith("keys of limit tenant; keys with changes come first.")


def test_lines_that_are_looked_at(
    app: Any, control: ThrottleControl, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest of each limit, keys that are stopped by themselves, then each limit in turn, the longest first."""
    monkeypatch.setattr(lines, "_MOST_LINES", 2)
    limits = [Limit(name, 1, key="key") for name in ("many", "few", "paused")]
    for limit, waiting in zip(limits, ("aabbbbcccdd", "aabb", "aabb"), strict=True):
        for number, key in enumerate(waiting):
            worker.put(f"{limit.name}{number}", terms(limit).needs({"keys": {limit.name: key}}))
    control.limit("paused").pause()
    control.limit("many", key="d").pause()
    (group,) = Checked(app, Commands(), timedelta()).groups
    found = [f"{each.status.name}/{each.status.key}" for each in group.lines]
    assert found == ["many/a", "few/a", "paused/a", "many/d", "many/b", "few/b"]
    assert group.unchecked[0].startswith("1 of 7 lines")


def test_the_command_is_the_one_of_this_shell(shell: Shell, redis: Redis) -> None:
    caller = TermsCaller(redis, "aaaaaaaa", "q", prefix="throttle")
    caller.know(Limit("gpu", 1))
    for begin in (FEATURES, ("--app=tests.support.apps.features",)):
        shell.run(*begin, "throttle", "disable", "gpu")
        out = shell.run(*begin, "throttle", "report").out
        assert f"  do:  celery {shlex.join(FEATURES)} throttle enable gpu\n" in out
    ended = shell.run("throttle", "report", "--url", shell.env["BROKER_URL"])
    assert ended.code == 0
    assert f"  do:  celery throttle enable --url {shell.env['BROKER_URL']} gpu\n" in ended.out


@pytest.mark.parametrize(
    ("line", "environ", "begin"),
    [
        ("celery -A shop throttle report", {}, "celery -A shop"),
        ("celery -Ashop -q throttle report", {"APP": "other"}, "celery -A shop"),
        ("celery --app shop throttle report", {}, "celery -A shop"),
        ("celery -b redis://:secret@x throttle report", {"CELERY_APP": "shop"}, "celery -A shop"),
        ("celery throttle report -A shop", {"APP": "a b"}, "celery -A 'a b'"),
        ("python", {}, "celery -A proj"),
    ],
)
def test_how_the_app_was_named(line: str, environ: dict[str, str], begin: str) -> None:
    assert typed_before(line.split(" "), environ) == begin
