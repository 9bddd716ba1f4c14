"""The verdict on an incident with 1 501 keys and a loud paused limit, and its hidden causes."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from redis import Redis

from celery_throttle import Limit, ThrottleControl
from celery_throttle.control import checks
from celery_throttle.control.checks import diagnose
from celery_throttle.control.cli.session import PARTLY
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.web.overview import overview
from tests.control.conftest import Run, make_app, run_in
from tests.control.test_looking import of
from tests.control.test_metrics import of_group, of_limit, read
from tests.store.cost import commands
from tests.store.peek import KEY, expire
from tests.store.terms_caller import TermsCaller, terms
from tests.support.disks import WRITES_LATER, unwritable
from tests.support.incident import HOUR, incident

pytestmark = pytest.mark.usefixtures("workers_answer")


@pytest.mark.parametrize(("paused_keys", "busy_limits"), [(51, 0), (100, 0), (51, 60)])
def test_no_line_is_hidden(control: ThrottleControl, redis: Redis, paused_keys: int, busy_limits: int) -> None:
    """Neither by a paused limit, nor by other limits whose tasks wait longer."""
    works = incident(redis, paused_keys=paused_keys).works
    for number in range(busy_limits):
        limit = terms(Limit(f"many{number}", 1)).same
        works.take(f"holds {number}", limit)
        works.put(f"waits {number}", limit, age=5 * HOUR)
    found = {(each.kind, each.limit or each.queue) for each in control.report().alarms}
    assert {("stuck", "gpu"), ("no-worker", "exports"), ("paused", "tenant")} <= found
    assert (("lost", None) in found) == (busy_limits == 0), "the calls of a busy worker reclaim ended leases"


def test_skipped_checks_have_an_exit_code(control: ThrottleControl, run: Run, worker: TermsCaller) -> None:
    for number in range(300):
        worker.put(f"t{number}", of(f"u{number}"))
    ended = run("report")
    assert ended.code == PARTLY
    assert "nothing needs attention" not in ended.out
    assert "no alarm in what was looked at" in ended.lines[0]
    assert any("of 300 lines" in each for each in control.report().unchecked)


def test_an_override_counts_all_that_it_keeps_waiting(control: ThrottleControl, redis: Redis) -> None:
    """Also those that stand in the lines of another limit; the keys of that count as one line if it is stopped."""
    worker = incident(redis, paused_keys=100, keys=100).works
    assert control.report().unchecked == ()
    api = Limit("api", 2)
    control.limit("api").override(1)
    worker.take("holds", terms(api).same)
    both = terms(api, Limit("tenant", 1, key="tenant_id"))
    for number in range(24):
        worker.put(f"waits {number}", both.needs({"keys": {"tenant": f"u{number}"}}))
    (found,) = [each for each in control.report().remarks if each.kind == "overridden"]
    assert found.waits == 24


def test_totals_are_those_of_all_keys(control: ThrottleControl, redis: Redis) -> None:
    made = incident(redis, paused_keys=1200)
    (found,) = [each for each in control.report().alarms if each.kind == "paused"]
    assert found.waits == made.parked["tenant"] == 1200
    stands = {each.bucket.text: each for each in control.status(most=1000)}
    assert stands["user"].parked_in_all == made.parked["user"] == 301
    assert (stands["tenant"].keys, stands["tenant"].parked_of_keys) == (1200, 1200)


def test_no_limit_is_missing(app: Any, control: ThrottleControl, redis: Redis) -> None:
    """However many there are."""
    worker = incident(redis, paused_keys=10, keys=20).works
    names = [f"many{number:04}" for number in range(1100)]
    for first in range(0, len(names), 50):
        worker.declare(*(Limit(name, 1) for name in names[first : first + 50]))
    permits = read(control.metrics())["celery_throttle_permits"]
    assert [name for name in names if ("", name) not in permits] == []
    assert of_group(app)["cut"] == 0
    assert {row.status.name for row in overview(app, "", 5000).rows} >= {*names, "tenant", "user", "gpu"}


def test_the_queues_of_all_parked_tasks_are_looked_at(
    control: ThrottleControl, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of those behind many others, which wait for limits with earlier names."""
    worker = incident(redis).works
    for number in range(3):
        worker.put(f"late {number}", terms(Limit("zebra", 1)).same, queue=f"zoo{number}", age=HOUR)
    monkeypatch.setattr(checks, "consumed", lambda _: {"q"})
    found = {each.queue: each.waits for each in control.report().alarms if each.kind == "no-worker"}
    assert found == {"exports": 2, "zoo0": 1, "zoo1": 1, "zoo2": 1}


def test_a_part_is_marked_and_is_no_sum(app: Any, control: ThrottleControl, run: Run, redis: Redis) -> None:
    made = incident(redis)
    assert of_group(app)["cut"] == 1
    assert not {"full", "next_start_seconds"} & of_limit(app, "user").keys()
    for limit in ("tenant", "user"):
        found = of_limit(app, limit)
        assert found["parked"] == found["keys"] == made.parked[limit]
        assert found["held"] == 0
    gpu = of_limit(app, "gpu")
    assert (gpu["parked"], gpu["held"]) == (3, 1)
    assert gpu["oldest_wait_seconds"] >= 700
    with commands(redis) as calls:
        (queue,) = [each for each in control.runnable() if each.queue == "q"]
    assert calls["zrange"] < 50, "passed-over queues are read once a call, not once for each key"
    assert queue.ready < 1449
    assert queue.at_least
    assert str(queue).startswith("q: at least ")
    (line,) = [each for each in run("runnable").lines if each.startswith("q ")]
    assert "+" in line


def test_a_whole_is_not_marked_and_advice_repeats_no_other_command(control: ThrottleControl, redis: Redis) -> None:
    incident(redis, keys=60)
    assert not any(each.at_least for each in control.runnable())
    verdict = control.report()
    advice = [each for found in verdict.alarms + verdict.remarks for each in found.do]
    assert advice
    assert not [each for each in advice if "throttle doctor" in each or "throttle report" in each]


def test_a_full_store_is_an_alarm(own_server: EmbeddedServer) -> None:
    app = make_app(own_server.url)
    with Redis.from_url(own_server.url) as client:
        incident(client, keys=60)
        client.config_set("maxmemory", 1)
        verdict, ended, doctor = ThrottleControl(app).report(), run_in(app, "report"), run_in(app, "doctor")
        client.config_set("maxmemory", 0)
    (full,) = [each for each in verdict.alarms if each.kind == "store"]
    assert full.what.startswith("The store is full: it uses all of its maxmemory, so it refuses to park tasks")
    assert full.why == "Workers have counted 0 store errors so far."
    assert (ended.code, doctor.code) == (1, 1)
    assert "! The store is full: " in doctor.out


@pytest.mark.skipif(sys.platform != "linux", reason="another process's limits")
@pytest.mark.parametrize("own_server", [WRITES_LATER], indirect=True)
def test_an_unwritable_store_is_the_only_alarm(own_server: EmbeddedServer) -> None:
    """Leases have ended, because no worker can renew them: none of the workers counts as lost."""
    app = make_app(own_server.url)
    with Redis.from_url(own_server.url) as client:
        incident(client, keys=60)
        for task in client.zrange(KEY["leases"], 0, -1):
            expire(client, task.decode())
    before = {each.kind for each in ThrottleControl(app).report().alarms}
    assert before & {"lost", "silent"}
    with unwritable(own_server):
        verdict, doctor, pause = ThrottleControl(app).report(), run_in(app, "doctor"), run_in(app, "pause", "user")
    (found,) = verdict.alarms
    assert found.kind == "store"
    assert found.what.startswith(
        "The store takes no writes, because it cannot write its append-only file (aof_last_write_status:err): "
    )
    assert "Workers live" in found.what
    assert found.why == "Workers have counted 0 store errors so far."
    assert f"! {found.what}" in doctor.out
    assert "lost" not in f"{verdict}{doctor.out}"
    assert (doctor.code, pause.code) == (1, 3)
    assert "MISCONF Errors writing to the AOF file" in pause.err
    assert {each.kind for each in ThrottleControl(app).report().alarms} == before


@pytest.mark.parametrize("policy", ["volatile-lru", "volatile-ttl"])
def test_volatile_policy_evicts_only_keys_with_a_ttl(own_server: EmbeddedServer, policy: str) -> None:
    """Only keys with a TTL go, and those are neither permits nor parked tasks."""
    app = make_app(own_server.url)
    with Redis.from_url(own_server.url) as client:
        incident(client, keys=60)
        client.config_set("maxmemory-policy", policy)
        lasting = {key.decode().rpartition(":")[2] for key in client.scan_iter() if client.ttl(key) == -1}
        found = [each.what for each in diagnose(app).findings if policy in each.what]
    assert {"leases", "records", "messages", "lanes", "used", "waiting"} <= lasting
    assert len(found) == 1
    assert "no permits and no parked tasks" in found[0]
