"""``celery throttle doctor``: the server, tasks and settings, and workers that declare a limit differently."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from celery_throttle import Limit, ThrottleControl
from celery_throttle.control import checks
from celery_throttle.control.checks import Diagnosis, diagnose
from celery_throttle.control.findings import Finding
from celery_throttle.control.server import RIGHTS, StoreFacts, _more_findings
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.store.scripts import execute
from tests.control.conftest import Run, make_app, run_in
from tests.control.test_looking import API, ONE, names
from tests.store.caller import KEYS
from tests.store.peek import KEY, be_away, expire, peek
from tests.store.terms_caller import TermsCaller
from tests.support.shell import Ended
from tests.support.workers import ROOT

REDIS_PAGE = (ROOT / "docs" / "howto" / "redis.md").read_text()
#: The rights of the store's user in the docs, for this prefix.
RULES = re.findall(r"ACL SETUSER \w+ on >PASSWORD (.+ -@all .+)", REDIS_PAGE)[0].replace("{shop}", f"{{{KEYS.prefix}}}")
USERS = {
    "user": [
        "default on nopass ~* &* +@all",
        f"least on >secret {RULES}",
        f"lacking on >secret {RULES} -hincrby -publish",
        f"elsewhere on >secret {RULES.replace(KEYS.prefix, 'elsewhere')} +time +eval",
    ]
}
with_users = pytest.mark.parametrize("own_server", [{"options": USERS}], indirect=True)
FACTS = StoreFacts("redis://host", "", "Redis 7.0.15", "master", "noeviction", "append-only file", (), 0.001, 0.0)


def findings(ended: Ended) -> list[str]:
    return [line.removeprefix("! ") for line in ended.lines if line.startswith("! ")]


def found(app: Any) -> list[str]:
    """Return the findings, except those about the server of the tests, which keeps nothing."""
    return [each.what for each in diagnose(app).findings if "not durable" not in each.what]


@pytest.mark.parametrize("own_server", [{"persistent": True}], indirect=True)
def test_all_is_well(own_server: EmbeddedServer) -> None:
    ended = run_in(make_app(own_server.url), "doctor")
    assert (ended.code, ended.err) == (0, "")
    said = dict(re.split(r"  +", line, maxsplit=1) for line in ended.lines if "  " in line)
    with Redis.from_url(own_server.url) as client:
        info: Any = client.info()
    server = "Valkey " + info["valkey_version"] if "valkey_version" in info else "Redis " + info["redis_version"]
    assert said.pop("latency").endswith(" ms")
    assert abs(float(said.pop("clock difference").removesuffix(" s"))) < 1
    assert said == {
        "store": own_server.url, "server": server, "role": "master", "eviction": "noeviction",
        "persistence": "append-only file", "missing rights": "none",
    }  # fmt: skip
    assert ended.lines[-1] == "Nothing needs attention."


def test_doctor_finds_data_that_the_store_would_lose(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = run("doctor")
    assert ended.code == 1
    assert findings(ended) == ["The store is not durable, a restart loses parked tasks: set appendonly yes."]
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 100)
    ended = run("doctor", "--json")
    assert (ended.code, ended.json.keys()) == (1, names(Diagnosis))
    (store,) = ended.json["stores"]
    assert store.keys() == names(StoreFacts)
    assert (store["role"], store["missing_rights"], store["persistence"]) == ("master", [], "none")
    assert 0 < store["latency"] < 1
    assert -101 < store["clock_difference"] < -99


def test_limits_of_a_release_with_another_layout(run: Run, redis: Redis) -> None:
    redis.hset("{test}:2:meta", "birth", 1)
    redis.zadd("{test}:2:lines", {"a": 0, "b": 0})
    found = findings(run("doctor"))
    assert (
        "The store also has the limits of a release with key layout 2 (this one has 3), with 2 parked tasks: the two "
        "share no limits. Drain the limits with that release and stop its workers, then remove the keys that begin "
        "with {test}:2:."
    ) in found


def test_a_replica(redis: Redis, own_server: EmbeddedServer) -> None:
    with Redis.from_url(own_server.url) as client:
        client.replicaof("127.0.0.1", redis.connection_pool.connection_kwargs["port"])
        ended = run_in(make_app(own_server.url), "doctor", "--json")
        client.replicaof("NO", "ONE")
    assert ended.json["stores"][0]["role"] == "slave"
    first = ended.json["findings"][0]
    assert (first["kind"], first["alarm"]) == ("store", True), "so it is in each report, too"
    assert first["what"] == "The store is a replica, which cannot be written to: point throttle_url at the primary."


@with_users
def test_a_user_with_the_least_rights(own_server: EmbeddedServer) -> None:
    url = own_server.url.replace("redis://", "redis://least:secret@")
    ended = run_in(make_app(url), "doctor")
    assert (ended.code, findings(ended)) == (0, [])
    assert "missing rights    none" in ended.lines
    assert "? The store does not report: server, role, eviction, persistence." in ended.lines
    assert "secret" not in ended.out
    assert set(re.findall(r"\+(\S+)", RULES)) == set(RIGHTS)


@with_users
@pytest.mark.parametrize(("user", "missing"), [("lacking", "publish hincrby"), ("elsewhere", "eval")])
def test_rights_that_are_missing(own_server: EmbeddedServer, user: str, missing: str) -> None:
    """Commands, or all that is done with the keys."""
    url = own_server.url.replace("redis://", f"redis://{user}:secret@")
    ended = run_in(make_app(url, broker_url=own_server.url, throttle_url=url), "doctor")
    wanted = " ".join(f"+{each}" for each in missing.split())
    assert ended.code == 1
    *others, last = findings(ended)
    assert last == (
        f"The store does not allow its user all that is needed: ACL SETUSER ... ~{{test}}:* &{{test}}:3:wake {wanted}."
    )
    assert f"missing rights    {', '.join(missing.split())}" in ended.lines
    assert others == (["Holders and parked tasks cannot be read."] if user == "elsewhere" else [])


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, None),
        ({"latency": 0.0499}, None),
        ({"latency": 0.08}, "an answer of the store takes 80 ms"),
        ({"clock_difference": -4.9}, None),
        ({"clock_difference": -6.04}, "the store's clock is -6.0 s from this machine's"),
        ({"missing_rights": None}, None),
    ],
)
def test_doctor_finds_excessive_numbers(facts: dict[str, Any], said: str | None) -> None:
    messages = list(_more_findings(replace(FACTS, **facts), KEYS))
    assert len(messages) == (said is not None)
    assert all(message.startswith(str(said)) for message in messages)


def test_options_of_tasks_that_do_nothing(app: Any, run: Run) -> None:
    def nothing() -> None: ...

    app.task(nothing, name="forgotten", limit=5, shared=False)
    ended = run("doctor")
    assert ended.code == 1
    assert any(each.startswith("Task forgotten has limit=5 but not base=Throttled") for each in findings(ended))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Limit("api", 2), None),
        (Limit("api", 3), "2 in this code, and 3 in that of the worker that started last"),
        (Limit("api", 2, max_parked=9), "2 in this code, and 2, max_parked=9 in that"),
        (Limit("api", 2, rate="10/s", burst=3), "2 in this code, and 2, 10/s (burst 3) in that"),
        (Limit("api", 2, fair_by="tenant"), "2 in this code, and 2, with turns in that"),
        (Limit("other", 9), None),
    ],
)
def test_declarations_that_differ(app: Any, worker: TermsCaller, other: Limit, said: str | None) -> None:
    worker.declare(other)
    assert [f"Limit api is {said}" in each for each in found(app)] == [True] * (said is not None)
    assert not any(each.alarm for each in diagnose(app).findings)


def test_doctor_finds_unreadable_records(app: Any, worker: TermsCaller, redis: Redis) -> None:
    worker.put("spoilt", ONE)
    redis.hset(KEY["records"], "spoilt", "{")
    worker.look()
    (finding,) = [each for each in diagnose(app).findings if each.kind == "set-aside"]
    assert (finding.alarm, finding.what) == (True, "1 task cannot start: spoilt.")
    assert finding.why.startswith("Their records in the store are not readable")


def test_doctor_leaves_what_runs_and_waits_to_the_report(
    app: Any, control: ThrottleControl, worker: TermsCaller, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it asks no worker."""
    monkeypatch.setattr(checks, "consumed", lambda app: pytest.fail("asked"))
    worker.arrive("lost", ONE)
    worker.put("waits", ONE)
    expire(redis, "lost")
    control.limit("api").pause()
    assert found(app) == []
    assert diagnose(app).unchecked == ()


# -- workers that differ -----------------------------------------------------------------------------------------------

W1, W2 = "w1/1/aa", "w2/1/bb"


def begun(redis: Redis, name: str, *limits: Limit) -> TermsCaller:
    """A worker that has declared these, and has called."""
    caller = TermsCaller(redis, name, "q", lease=60)
    caller.declare(*limits)
    caller.look(0)
    return caller


def declared(control: ThrottleControl) -> list[Finding]:
    verdict = control.report()
    return [each for each in verdict.alarms + verdict.remarks if each.kind == "declared"]


@pytest.mark.usefixtures("workers_answer")
@pytest.mark.parametrize(
    ("workers", "what", "newest"),
    [
        ((Limit("api", 2), Limit("api", 8), Limit("api", 2)), "api differently: 2 on w1 and w3, 8 on w2.", "2"),
        ((Limit("api", 2), Limit("api", 8)), "api differently: 2 on w1, 8 on w2.", "8"),
        (
            (Limit("far", 2), Limit("far", 3, max_parked=9)),
            "far differently: 2 on w1, 3, max_parked=9 on w2.",
            "3, max_parked=9",
        ),
    ],
    ids=["and the newest agrees with this code", "and with this code", "of a limit that this code does not have"],
)
def test_workers_that_differ_are_one_alarm(
    app: Any, control: ThrottleControl, redis: Redis, workers: tuple[Limit, ...], what: str, newest: str
) -> None:
    for number, limit in enumerate(workers, 1):
        begun(redis, f"w{number}", limit)
    (found,) = declared(control)
    assert (found.alarm, found.limit, found.what) == (True, workers[0].name, f"Workers declare limit {what}")
    assert found.why == f"The declaration of the worker that started last holds for all: {newest}."
    assert [each for each in diagnose(app).findings if each.limit == found.limit] == [found]


def only_renew(busy: TermsCaller, redis: Redis) -> None:
    """Make no call for parked tasks, as a worker without a free slot."""
    run = busy.take("held", ONE)
    be_away(redis)
    busy.renew(run)


@pytest.mark.usefixtures("workers_answer")
@pytest.mark.parametrize(
    ("permits", "happens", "found"),
    [
        pytest.param(2, lambda other, redis: None, 0, id="agrees"),
        pytest.param(8, lambda other, redis: None, 1, id="differs"),
        pytest.param(8, lambda other, redis: other.leave(), 0, id="has left"),
        pytest.param(8, lambda other, redis: be_away(redis), 0, id="is lost"),
        pytest.param(8, only_renew, 1, id="is full, and only renews"),
    ],
)
def test_finding_beside_a_worker_that(
    control: ThrottleControl, redis: Redis, permits: int, happens: Callable[[TermsCaller, Redis], None], found: int
) -> None:
    happens(begun(redis, W1, Limit("api", permits)), redis)
    begun(redis, W2, API)
    assert len(declared(control)) == found


@pytest.mark.usefixtures("workers_answer")
def test_pages_of_many_limits_are_one_declaration(control: ThrottleControl, redis: Redis) -> None:
    caller = TermsCaller(redis, W1, "q")
    limits = {f"l{number}": "1" for number in range(120)}
    for call in caller.store.declarations("", limits.items(), worker=W1):
        execute(redis, call)
    caller.look(0)
    begun(redis, W2, *(Limit(name, 2) for name in ("l0", "l119")))
    assert {each.limit for each in declared(control)} == {"l0", "l119"}
    assert f"meta:declared:{W1}" in peek(redis).sets["ends"]
    caller.leave()
    assert f"declared:{W1}" not in peek(redis).meta


@pytest.mark.usefixtures("workers_answer")
@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '{"limits": {"api": 7}, "options": {}}',
        '{"limits": {"api": "nine"}, "options": {}}',
        '{"limits": {}, "options": {"task": ["api"]}}',
        '{"api": "8"}',
    ],
)
def test_foreign_declarations_are_skipped(control: ThrottleControl, redis: Redis, text: str) -> None:
    begun(redis, W1, API)
    begun(redis, W2, Limit("api", 8))
    redis.hset(KEY["meta"], f"declared:{W1}", text)
    assert all(W1 not in each.what for each in declared(control))
