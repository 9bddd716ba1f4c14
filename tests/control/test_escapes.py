"""No command, log line or text passes on escapes to the terminal, for any names, keys, authors and reasons."""

from __future__ import annotations

import json
import logging
import shlex
from typing import Any

import pytest
from kombu.message import Message
from redis import Redis

from celery_throttle import Limit, ThrottleControl
from celery_throttle.control import causes, queues
from celery_throttle.control.metrics import measured
from celery_throttle.store.parcel import pack
from celery_throttle.store.scripts import execute
from tests.control.conftest import Run
from tests.store.peek import KEY
from tests.store.terms_caller import TermsCaller, terms
from tests.support.shell import Ended

STEERS = "\x1b[2J\x07\x1f\x7f\x9b\u2028\u202e"
#: By and why may have these, too.
BREAKS = "a\nb\x1b[2J\rc\x9bd\u202ee\x00"
GPU, TENANT = Limit("gpu", 1), Limit("tenant", 1, key="tenant_id")
COMMANDS = [
    *("status", "status --keys", "top --times 1", "report", "doctor", "doctor --repair", "audit", "locks", "metrics"),
    *("runnable", "drain", "show tenant", "drop tenant", "history tenant", "remove-data", "reap", "show gpu"),
    *(f"explain 'holds{STEERS}'", f"explain 'waits{STEERS}'", f"explain '{STEERS}'", f"show 'ten{STEERS}'"),
    *(f"runnable 'v{STEERS}'", f"metrics --queue 'v{STEERS}'", f"locks 'z{STEERS}'", f"set gpu 'x{STEERS}'"),
    *(f"set tenant 3 --key 'k{STEERS}' --dry-run", f"pause gpu --for 'x{STEERS}'", f"show gpu 'x{STEERS}'"),
    *(f"locks charge --args '[{STEERS}'", f"drop --task 'waits{STEERS}' --yes", f"show tenant --key 'k{STEERS}'"),
    f"no{STEERS}",
]


@pytest.fixture
def shop(app: Any, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An app whose store has hostile names in all places that take any."""
    monkeypatch.setattr(causes, "_AGAIN", 0.0)
    worker = TermsCaller(redis, f"aaaaaaaa{STEERS}", f"q{STEERS}")
    headers = {"task": f"call{STEERS}"}
    message = pack(Message("[[], {}, {}]", headers=headers, properties={}, content_type="application/json"))
    needs = terms(TENANT).needs({"keys": {"tenant": f"k{STEERS}"}})
    worker.arrive(f"holds{STEERS}", needs)
    worker.put(f"waits{STEERS}", needs, message=message)
    worker.put(f"could start{STEERS}", terms(GPU).same, message=message)
    execute(redis, worker.store.control(f"tenant\x1fk{STEERS}", "pause", "1", "0", f"ana{STEERS}", f"why{STEERS}"))
    redis.hset(KEY["overrides"], f"tenant\x1fz{STEERS}", "{")
    redis.hset(KEY["records"], f"broken{STEERS}", "{")
    app.tasks["charge"].delay(STEERS, 3)
    return app


def steering(ended: Ended) -> set[str]:
    return {each for each in ended.out + ended.err if not each.isprintable() and each != "\n"}


def test_no_command_steers_the_terminal(shop: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shop
    monkeypatch.setattr(queues, "_PATIENCE", 0.05)
    found = {}
    for command in COMMANDS:
        for options in ([], ["--json"]):
            ended = run(*shlex.split(command), *options)
            if steering(ended):
                found[command, bool(options)] = (steering(ended), ended.err)
    assert found == {}


def test_names_are_exact_in_json_and_printable_elsewhere(shop: Any, run: Run) -> None:
    rows = run("status", "--json").json
    assert [each["key"] for each in rows if each["name"] == "tenant" and each["parked"]] == [f"k{STEERS}"]
    assert json.loads(run("top", "--times", "1", "--json").lines[0])
    (row,) = [each for each in run("doctor", "--repair", "--json").json["wrong"] if each["key"] == "overrides"]
    assert row["field"] == f"tenant[z{STEERS}]"
    samples = [sample for metric in measured(shop) for sample in metric.samples]
    labels = [value for sample in samples for value in sample.labels.values()]
    assert any(each.startswith(r"q\x1b[2J\x07") for each in labels)
    assert all(each.isprintable() for each in labels)


def test_authors_and_reasons_break_no_line(
    app: Any, control: ThrottleControl, run: Run, worker: TermsCaller, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in the log nor in anything printed."""
    caplog.set_level(logging.INFO, "celery_throttle")
    worker.put("waits", terms(Limit("api", 2)).same)
    words: dict[str, Any] = {"by": BREAKS, "why": BREAKS}
    limit, keyed = control.limit("api"), control.limit("tenant", key=BREAKS)
    for one in (limit, keyed):
        one.pause(**words)
        one.override(5, until=60, **words)
        one.disable(**words)
    printed: list[object] = []
    for status in control.status():
        printed += [each.text for each in status.states]
        printed += [str(each) for each in (status.paused, status.override, status.disabled, status.held_back) if each]
    printed += control.explain("waits").reasons
    printed += [each.why for each in control.report().remarks]
    control.drop("waits", **words)
    control.drop("none\nsuch", **words)
    printed += control.explain("waits").reasons
    for one in (limit, keyed):
        one.reset(**words)
        one.resume(**words)
        one.resume(**words)
        one.enable(**words)
        one.drop(**words)
    app.tasks["charge"].delay(17, amount=5)
    control.unlock(control.locks()[0].identity, **words)
    control.drain(**words)
    printed += control.audit()
    printed += [record.getMessage() for record in caplog.records]
    assert [each for each in map(str, printed) if not each.isprintable()] == []
    assert sum(r"a\nb\x1b[2J\rc\x9bd\u202ee\x00" in str(each) for each in printed) > 30
    for command in (["status"], ["audit"], ["show", "api"], ["pause", "api", "--by", BREAKS, "--why", BREAKS]):
        assert not steering(run(*command))
