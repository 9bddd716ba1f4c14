"""``celery throttle report``: one verdict."""

from __future__ import annotations

import json
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
from tests.control.test_looking import API, ONE, fill, names, of
from tests.control.test_shell import FEATURES
from tests.store.cost import commands
from tests.store.peek import KEY, expire, peek
from tests.store.terms_caller import TermsCaller, terms
from tests.support.shell import Shell
from tests.support.workers import ROOT

pytestmark = pytest.mark.usefixtures("workers_answer")

HOUR = 3600.0


def held_since(redis: Redis, task: str, ago: float) -> None:
    """Let a task have its permit since so many seconds ago."""
    record = peek(redis).records[task].raw
    redis.hset(KEY["records"], task, json.dumps(record | {"since": record["since"] - ago * 1000}))


def told(app: Any, **options: Any) -> list[Finding]:
    """Return the findings."""
    verdict = ThrottleControl(app).report(**options)
    return [*verdict.alarms, *verdict.remarks]


def kinds(app: Any, **options: Any) -> list[str]:
    """Kinds in order; alarms in capitals."""
    return [each.kind.upper() if each.alarm else each.kind for each in told(app, **options)]


# -- the form of the text ----------------------------------------------------------------------------------------------


def test_nothing_is_wrong(app: Any, run: Run, worker: TermsCaller) -> None:
    """That the tests' server keeps nothing is a finding of `doctor`."""
    worker.arrive("t", ONE)
    assert told(app) == []
    ended = run("report")
    assert (ended.code, ended.err) == (0, "")
    assert re.fullmatch(r"[0-9-]{10} [0-9:]{8} UTC: nothing needs attention\.", ended.out.rstrip())


def test_report_shows_finding_reason_and_action(app: Any, run: Run, worker: TermsCaller) -> None:
    worker.know(API)
    ThrottleControl(app).limit("api").pause(by="ana", why="incident 42")
    for task, age in (("t0", 2 * HOUR), ("t1", HOUR)):
        worker.put(task, ONE, age=age)
    said = ThrottleControl(app).limit("api").status().paused
    assert said
    ended = run("report")
    assert ended.code == 1
    assert ended.lines[0].endswith(" UTC: 1 alarm.")
    assert ended.lines[1:4] == [
        "! Limit api is paused: 2 tasks wait, the first for 2h 0m.",
        f"  why: Paused since {said.since:%Y-%m-%d %H:%M:%S} UTC by ana, because: incident 42.",
        "  do:  celery -A proj throttle resume api",
    ]
    run("resume", "api")
    assert "paused" not in run("report").out


def test_as_json(app: Any, run: Run, worker: TermsCaller) -> None:
    worker.know(API)
    ThrottleControl(app).limit("api").pause()
    worker.put("t", ONE, age=HOUR)
    ended = run("report", "--json")
    assert ended.code == 1
    shown = ended.json
    assert shown.keys() == names(Report)
    (alarm,) = shown["alarms"]
    assert alarm.keys() == names(Finding)
    assert (alarm["kind"], alarm["limit"], alarm["waits"]) == ("paused", "api", 1)
    assert alarm["do"] == ["celery -A proj throttle resume api"]
    assert shown["remarks"] == []


def test_report_shows_the_time_of_the_store(app: Any, redis: Redis) -> None:
    before, _ = redis.time()
    verdict = ThrottleControl(app).report()
    after, _ = redis.time()
    assert before <= verdict.at.timestamp() <= after + 1
    assert 0 < verdict.took < 60


def test_the_same_state_is_the_same_verdict(app: Any, worker: TermsCaller, redis: Redis) -> None:
    throttle = ThrottleControl(app)
    for number in range(3):
        worker.put(f"a{number}", terms(Limit(f"a{number}", 1)).same, age=HOUR * number)
        throttle.limit(f"a{number}").pause()
    worker.arrive("lost", ONE)
    expire(redis, "lost")
    throttle.limit("api").override(9)
    first, second = (told(app, patience=60) for _ in range(2))
    assert [(each.kind, each.limit) for each in first] == [
        ("lost", None), ("paused", "a2"), ("paused", "a1"), ("paused", "a0"), ("overridden", "api"),
    ]  # fmt: skip
    assert [each.do for each in first] == [each.do for each in second]


def test_every_kind_has_its_place() -> None:
    found = [Finding(kind, False, kind) for kind in reversed(KINDS)]
    assert [each.kind for each in in_order(found)] == list(KINDS)


def test_docs_list_the_checks() -> None:
    page = (ROOT / "docs" / "reference" / "findings.md").read_text()
    rows = [f"| {each.looks_at} |{' yes' * each.now} |{' yes' * each.set_up} |" for each in CHECKS]
    assert "\n".join(rows) in page


@pytest.mark.parametrize("patience", [-1, True, "10m", None, float("nan")])
def test_patience_that_is_none(app: Any, patience: Any) -> None:
    with pytest.raises(ConfigurationError, match="patience must be seconds"):
        ThrottleControl(app).report(patience=patience)


# -- overrides ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "ends", "age", "found"),
    [
        ("pause", "resume", HOUR, ["PAUSED"]),
        ("pause", "resume", 60, ["paused"]),
        ("pause", "resume", None, ["paused"]),
        ("disable", "enable", None, ["disabled"]),
    ],
)
def test_overrides_matter_by_their_parked_tasks(
    app: Any, worker: TermsCaller, change: str, ends: str, age: float | None, found: list[str]
) -> None:
    worker.know(API)
    limit = ThrottleControl(app).limit("api")
    getattr(limit, change)()
    if age is not None:
        worker.put("t", ONE, age=age)
    assert kinds(app) == found
    assert kinds(app, patience=timedelta(hours=2)) == [each.lower() for each in found]
    getattr(limit, ends)()
    worker.look()
    assert kinds(app) == []


def test_pause_of_all_keys_is_reported_once(app: Any, worker: TermsCaller) -> None:
    throttle = ThrottleControl(app)
    worker.know(Limit("tenant", 1, key="tenant"))
    throttle.limit("tenant").pause(by="ana")
    for number in range(5):
        worker.put(f"t{number}", of(f"key {number}"), age=HOUR + number)
    (found,) = told(app)
    assert found.what == "Limit tenant is paused: 5 tasks wait, the first for 1h 0m."
    throttle.limit("tenant", key="key 1").pause()
    assert [(each.limit, each.key) for each in told(app)] == [("tenant", None), ("tenant", "key 1")]


def test_command_can_be_pasted_for_any_names(app: Any, run: Run, worker: TermsCaller) -> None:
    key = 'a b\'; rm -rf "$HOME" #'
    worker.put("t", of(key), age=HOUR)
    ThrottleControl(app).limit("tenant", key=key).pause()
    (found,) = told(app)
    words = shlex.split(found.do[0])
    assert words[:4] == ["celery", "-A", "proj", "throttle"]
    assert run(*words[4:]).code == 0
    assert ThrottleControl(app).limit("tenant", key=key).status().paused is None


def test_a_command_about_names_that_look_like_options() -> None:
    begin = Commands("celery", ("--url", "redis://x"))
    assert begin.throttle("resume", Bucket("--yes", "-k")) == "celery throttle resume --url redis://x --key=-k -- --yes"
    assert shlex.split(begin.throttle("set", Bucket("-x"), "3", options=[("dry-run", None)]))[4:] == [
        "redis://x", "--dry-run", "--", "-x", "3",
    ]  # fmt: skip
    assert begin.worker("a b") == "celery -A proj worker -Q 'a b'"


def test_a_hold(app: Any, worker: TermsCaller) -> None:
    worker.send_back(worker.take("t", ONE), 3600)
    assert kinds(app) == ["held-back"]
    worker.put("t2", ONE, age=HOUR)
    assert kinds(app) == ["held-back"]  # the task that was sent back goes first, and has just come
    (found,) = told(app, patience=0)
    assert found.alarm
    assert found.do == ("celery -A proj throttle release-hold api",)


def test_an_override(app: Any, worker: TermsCaller) -> None:
    worker.arrive("t1", ONE)
    limit = ThrottleControl(app).limit("api")
    limit.override(7)
    assert kinds(app) == ["overridden"]
    limit.override(1, by="ana")
    assert kinds(app) == ["overridden"]
    worker.put("t2", ONE, age=HOUR)
    (found,) = told(app)
    assert found.alarm
    assert found.what == "Limit api has 1 instead of 2: 1 task waits, the first for 1h 0m."
    assert found.do == ("celery -A proj throttle reset api",)


def test_more_permits_than_the_code_has_are_no_alarm(app: Any, worker: TermsCaller) -> None:
    worker.know(API)
    ThrottleControl(app).limit("api").override(3)
    fill(worker, 3)
    worker.put("waits", ONE, age=HOUR)
    assert kinds(app) == ["overridden", "full"]


def test_more_run_than_the_code_allows(app: Any, worker: TermsCaller) -> None:
    worker.know(API)
    ThrottleControl(app).limit("api").disable()
    fill(worker, 3)
    (found,) = told(app)
    assert found.alarm
    assert found.what == "Limit api is not enforced: 3 run of api, the code allows 2."
    assert found.do == ("celery -A proj throttle enable api",)


# -- reasons why lines wait --------------------------------------------------------------------------------------------


def full(worker: TermsCaller, *, age: float = HOUR) -> None:
    for task in ("one", "two"):
        worker.arrive(task, ONE)
    worker.put("waits", ONE, age=age)


def test_full_and_busy_is_a_remark(app: Any, worker: TermsCaller, redis: Redis) -> None:
    full(worker)
    held_since(redis, "one", 2 * HOUR)
    (found,) = told(app)
    assert (found.kind, found.alarm) == ("full", False)
    assert re.fullmatch(
        r"Limit api is full: 1 task waits, the first for 1h 0m; its last start was \S+ s ago\.", found.what
    )
    assert "Task one has held longest" in found.why
    assert found.do == ("celery -A proj throttle show api", "celery -A proj throttle set --dry-run api 3")


def test_full_for_a_moment_is_nothing(app: Any, worker: TermsCaller) -> None:
    full(worker, age=60)
    assert told(app) == []


def test_full_and_nothing_starts_is_an_alarm(app: Any, worker: TermsCaller, redis: Redis) -> None:
    full(worker)
    held_since(redis, "one", 3 * HOUR)
    held_since(redis, "two", 2 * HOUR)
    (found,) = told(app)
    assert (found.kind, found.alarm) == ("stuck", True)
    assert found.what == (
        "Limit api is full, and nothing has started on it for 2h 0m: 1 task waits, the first for 1h 0m."
    )
    assert found.why.startswith("Limit api is full: 2 of 2 permits are held.")
    assert found.why.endswith("on worker aaaaaaaa.")


def test_partly_read_holders_give_no_finding(
    app: Any, worker: TermsCaller, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the others may have started just now."""
    full(worker)
    for task in ("one", "two"):
        held_since(redis, task, HOUR)
    monkeypatch.setattr(lines, "MOST", 1)
    (found,) = told(app)
    assert (found.kind, found.alarm) == ("full", False)
    assert "last start" not in found.what


def test_a_task_that_needs_more_than_is_free(app: Any, worker: TermsCaller, redis: Redis) -> None:
    worker.arrive("one", ONE)
    worker.put("waits", terms(API, cost=2).same, age=HOUR)
    held_since(redis, "one", HOUR)
    (found,) = told(app)
    assert (found.kind, found.alarm) == ("stuck", True)


def test_keys_that_are_full_are_one_finding(app: Any, worker: TermsCaller) -> None:
    for number in range(4):
        worker.arrive(f"h{number}", of(f"k{number}"))
        worker.put(f"w{number}", of(f"k{number}"), age=HOUR + 60 * number)
    (found,) = told(app)
    assert (found.kind, found.key, found.waits) == ("full", "k3", 4)
    assert found.what.endswith(" The same holds for 3 more keys of tenant.")


def test_the_rate(app: Any, worker: TermsCaller) -> None:
    mail = terms(Limit("mail", rate="1/h")).same
    worker.arrive("t", mail)
    worker.put("waits", mail, age=HOUR)
    (found,) = told(app)
    assert (found.kind, found.alarm) == ("rate", False)
    assert "The rate of limit mail (1/h) allows the next start in" in found.why


def test_a_limit_that_no_worker_has_declared(app: Any, worker: TermsCaller, redis: Redis) -> None:
    worker.put("t", ONE, age=HOUR)
    redis.hdel(KEY["limits"], "api")
    (found,) = told(app)
    assert (found.kind, found.alarm, found.do) == ("undeclared", True, ("celery -A proj worker -Q q",))
    assert ThrottleControl(app).explain("t").reasons[0] == "No worker has declared limit api."


def test_unused_room_is_reported(app: Any, worker: TermsCaller) -> None:
    worker.put("t", ONE, age=HOUR)
    (found,) = told(app)
    assert (found.kind, found.alarm) == ("no-slot", True)
    assert (
        found.what
        == "Limit api has room, but the first of its line, t, does not start: 1 task waits, the first for 1h 0m."
    )
    assert found.do == ("celery -A proj worker -Q q",)


def test_room_that_is_taken_in_a_moment(app: Any, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.put("t", ONE, age=HOUR)
    monkeypatch.setattr("celery_throttle.control.causes.time.sleep", lambda _: worker.look())
    assert told(app) == []


def test_queue_without_consumer_is_reported(app: Any, redis: Redis) -> None:
    other = TermsCaller(redis, "cccccccc", "mail")
    other.put("t", ONE, age=HOUR)
    other.put("outside", ONE, age=HOUR, queue="~4711", outside=True)
    (found,) = [each for each in told(app) if each.queue == "mail"]
    assert (found.kind, found.alarm, found.waits) == ("no-worker", True, 1)
    assert found.do == ("celery -A proj worker -Q mail",)


def test_unreachable_workers_are_reported(app: Any, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(checks, "consumed", asked.append)
    assert ThrottleControl(app).report().unchecked == ()
    assert asked == []  # no worker is asked where no task waits
    full(worker)
    verdict = ThrottleControl(app).report()
    assert verdict.unchecked == (
        "Which queues the workers consume: none answered a remote control command within a second.",
    )
    assert "no-worker" not in [each.kind for each in verdict.alarms]


# -- losses ------------------------------------------------------------------------------------------------------------


def test_unreclaimed_holders_are_reported(app: Any, run: Run, worker: TermsCaller, redis: Redis) -> None:
    fill(worker, 5, terms(Limit("many", 9)).same)
    expire(redis, *(f"t{number}" for number in range(5)))
    (found,) = told(app)
    assert (found.kind, found.alarm, found.do) == ("lost", True, ("celery -A proj throttle reap",))
    assert found.what.endswith("still hold permits for 5 tasks: t0, t1, t2 and 2 more.")
    assert run("reap").code == 0
    assert told(app) == []


def test_missing_data_gives_no_finding(app: Any, worker: TermsCaller, redis: Redis) -> None:
    """For a moment after the store lost its data holders are missing in it."""
    worker.put("t", ONE, age=HOUR)
    ThrottleControl(app).limit("api").pause()
    redis.hset(KEY["meta"], "settling", f"{peek(redis).now + 60_000:.0f}")
    assert kinds(app) == ["SETTLING"]


# -- costs -------------------------------------------------------------------------------------------------------------


def test_it_costs_no_more_where_there_is_more(app: Any, worker: TermsCaller, redis: Redis) -> None:
    for number in range(300):
        worker.put(f"t{number}", of(f"k{number}"))
        worker.put(f"u{number}", of(f"k{number}"))
    ThrottleControl(app).report()
    with commands(redis) as calls:
        verdict = ThrottleControl(app).report()
    assert calls["evalsha"] < 200
    assert any("of 300 lines" in each for each in verdict.unchecked)


def test_the_longest_wait_is_looked_at_first(app: Any, worker: TermsCaller, redis: Redis) -> None:
    """However many keys of a paused limit wait."""
    ThrottleControl(app).limit("tenant").pause()
    for number in range(60):
        worker.put(f"t{number}", of(f"k{number}"))
        worker.put(f"u{number}", of(f"k{number}"))
    for task in ("one", "two"):
        worker.take(task, ONE)
        held_since(redis, task, 2 * HOUR)
    worker.put("late", ONE, age=HOUR)
    (stuck,) = [each for each in told(app) if each.kind == "stuck"]
    assert (stuck.alarm, stuck.limit, stuck.waits) == (True, "api", 1)


def test_a_limit_is_not_hidden_by_keys(app: Any, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        worker.put(f"t{number}", of(f"k{number}"))
    worker.know(API)
    ThrottleControl(app).limit("api").pause()
    worker.put("t", ONE, age=HOUR)
    monkeypatch.setattr(lines, "MOST", 5)
    assert kinds(app)[0] == "PAUSED"
    (unchecked,) = ThrottleControl(app).report().unchecked
    assert unchecked.endswith("keys of limit tenant; keys with changes come first.")


def test_lines_that_are_looked_at(app: Any, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest of each limit, keys that are stopped by themselves, then each limit in turn, the longest first."""
    monkeypatch.setattr(lines, "_MOST_LINES", 2)
    limits = [Limit(name, 1, key="key") for name in ("many", "few", "paused")]
    for limit, waiting in zip(limits, ("aabbbbcccdd", "aabb", "aabb"), strict=True):
        for number, key in enumerate(waiting):
            worker.put(f"{limit.name}{number}", terms(limit).needs({"keys": {limit.name: key}}))
    ThrottleControl(app).limit("paused").pause()
    ThrottleControl(app).limit("many", key="d").pause()
    (group,) = Checked(app, Commands(), timedelta()).groups
    found = [f"{each.status.name}/{each.status.key}" for each in group.lines]
    assert found == ["many/a", "few/a", "paused/a", "many/d", "many/b", "few/b"]
    assert group.unchecked[0].startswith("1 of 7 lines")


# -- in a shell --------------------------------------------------------------------------------------------------------


def test_the_command_is_the_one_of_this_shell(shell: Shell, redis: Redis) -> None:
    caller = TermsCaller(redis, "aaaaaaaa", "q", prefix="throttle")
    caller.know(Limit("gpu", 1))
    app = ("--app=tests.support.apps.features",)
    for begin in (FEATURES, app):
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
