"""``celery throttle doctor``."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from celery_throttle import Limit, ThrottleControl
from celery_throttle.control import checks
from celery_throttle.control.checks import Diagnosis, diagnose
from celery_throttle.control.server import RIGHTS, StoreFacts, _more_findings
from celery_throttle.embedded import EmbeddedServer
from tests.control.conftest import Run, make_app, run_in
from tests.control.test_looking import ONE, names
from tests.store.caller import KEYS
from tests.store.peek import KEY, expire
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


# -- the server --------------------------------------------------------------------------------------------------------


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


def test_doctor_finds_data_that_the_store_would_lose(run: Run) -> None:
    ended = run("doctor")
    assert ended.code == 1
    assert findings(ended) == ["The store is not durable, a restart loses parked tasks: set appendonly yes."]


def test_as_json(run: Run) -> None:
    ended = run("doctor", "--json")
    shown = ended.json
    assert ended.code == 1
    assert shown.keys() == names(Diagnosis)
    (store,) = shown["stores"]
    assert store.keys() == names(StoreFacts)
    assert (store["role"], store["missing_rights"], store["persistence"]) == ("master", [], "none")
    assert 0 < store["latency"] < 1


def test_a_replica(redis: Redis, own_server: EmbeddedServer) -> None:
    with Redis.from_url(own_server.url) as client:
        client.replicaof("127.0.0.1", redis.connection_pool.connection_kwargs["port"])
        ended = run_in(make_app(own_server.url), "doctor", "--json")
        client.replicaof("NO", "ONE")
    assert ended.json["stores"][0]["role"] == "slave"
    first = ended.json["findings"][0]
    assert (first["kind"], first["alarm"]) == ("store", True), "so it is in each report, too"
    assert first["what"] == "The store is a replica, which cannot be written to: point throttle_url at the primary."


def test_the_rights_are_those_of_the_readme() -> None:
    assert set(re.findall(r"\+(\S+)", RULES)) == set(RIGHTS)


@with_users
def test_a_user_with_the_least_rights(own_server: EmbeddedServer) -> None:
    url = own_server.url.replace("redis://", "redis://least:secret@")
    ended = run_in(make_app(url), "doctor")
    assert (ended.code, findings(ended)) == (0, [])
    assert "missing rights    none" in ended.lines
    assert "? The store does not report: server, role, eviction, persistence." in ended.lines
    assert "secret" not in ended.out


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
        "The store does not allow its user all that is needed: "
        f"ACL SETUSER ... ~{{test}}:2:* &{{test}}:2:wake {wanted}."
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


def test_a_clock_that_is_wrong(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 100)
    assert -101 < run("doctor", "--json").json["stores"][0]["clock_difference"] < -99


# -- the tasks ---------------------------------------------------------------------------------------------------------


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


# -- records -----------------------------------------------------------------------------------------------------------


def test_doctor_finds_unreadable_records(app: Any, worker: TermsCaller, redis: Redis) -> None:
    worker.put("spoilt", ONE)
    redis.hset(KEY["records"], "spoilt", "{")
    worker.look()
    (finding,) = [each for each in diagnose(app).findings if each.kind == "set-aside"]
    assert (finding.alarm, finding.what) == (True, "1 task cannot start: spoilt.")
    assert finding.why.startswith("Their records in the store are not readable")


def test_doctor_leaves_what_runs_and_waits_to_the_report(
    app: Any, worker: TermsCaller, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it asks no worker."""
    monkeypatch.setattr(checks, "consumed", lambda app: pytest.fail("asked"))
    worker.arrive("lost", ONE)
    worker.put("waits", ONE)
    expire(redis, "lost")
    ThrottleControl(app).limit("api").pause()
    assert found(app) == []
    assert diagnose(app).unchecked == ()
