"""No command passes on escapes to the terminal, for any names and keys."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from kombu.message import Message
from redis import Redis

from celery_throttle import Limit
from celery_throttle.control import causes, queues
from celery_throttle.control.metrics import measured
from celery_throttle.store.parcel import pack
from celery_throttle.store.scripts import execute
from tests.control.conftest import run_in
from tests.store.peek import KEY
from tests.store.terms_caller import TermsCaller, terms
from tests.support.shell import Ended

STEERS = "\x1b[2J\x07\x1f\x7f\x9b\u2028\u202e"
GPU, TENANT = Limit("gpu", 1), Limit("tenant", 1, key="tenant_id")
COMMANDS = [
    *("status", "status --keys", "top --times 1", "report", "doctor", "doctor --repair", "audit", "locks", "metrics"),
    *("runnable", "drain", "show tenant", "drop tenant", "history tenant", "remove-data", "reap", "show gpu"),
    *(f"explain 'holds{STEERS}'", f"explain 'waits{STEERS}'", f"explain '{STEERS}'", f"show 'ten{STEERS}'"),
    *(f"runnable 'v{STEERS}'", f"metrics --queue 'v{STEERS}'", f"locks 'z{STEERS}'", f"set gpu 'x{STEERS}'"),
    *(
        f"set tenant 3 --key 'k{STEERS}' --dry-run",
        f"pause gpu --for 'x{STEERS}'",
        f"no{STEERS}",
    ),
    f"show gpu 'x{STEERS}'",
    *(f"locks charge --args '[{STEERS}'", f"drop --task 'waits{STEERS}' --yes", f"show tenant --key 'k{STEERS}'"),
]


@pytest.fixture
def shop(app: Any, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An app whose store has hostile names in all places that take any."""
    monkeypatch.setattr(causes, "_AGAIN", 0.0)
    monkeypatch.setattr(queues, "_PATIENCE", 0.05)
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


def test_no_command_steers_the_terminal(shop: Any) -> None:
    found = {}
    for command in COMMANDS:
        for options in ([], ["--json"]):
            ended = run_in(shop, *shlex.split(command), *options)
            if steering(ended):
                found[command, bool(options)] = (steering(ended), ended.err)
    assert found == {}


def test_json_has_names_as_they_are(shop: Any) -> None:
    rows = run_in(shop, "status", "--json").json
    assert [each["key"] for each in rows if each["name"] == "tenant" and each["parked"]] == [f"k{STEERS}"]
    assert json.loads(run_in(shop, "top", "--times", "1", "--json").lines[0])


def test_unreadable_field_names_the_key_in_plain_text(shop: Any) -> None:
    (row,) = [each for each in run_in(shop, "doctor", "--repair", "--json").json["wrong"] if each["key"] == "overrides"]
    assert row["field"] == f"tenant[z{STEERS}]"


def test_labels_of_metrics_are_printable(shop: Any) -> None:
    samples = [sample for metric in measured(shop) for sample in metric.samples]
    labels = [value for sample in samples for value in sample.labels.values()]
    assert any(each.startswith(r"q\x1b[2J\x07") for each in labels)
    assert all(each.isprintable() for each in labels)
