"""``celery throttle status``: limits before their keys, each with its numbers and its state."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from celery_throttle import Limit, ThrottleControl
from celery_throttle.control import rows as rows_module
from celery_throttle.core.policy import Needs
from celery_throttle.store.limit_status import LimitStatus
from tests.control.conftest import Run, add_task
from tests.control.test_looking import API, MAIL, ONE, fill, names, of
from tests.store.peek import KEY
from tests.store.terms_caller import TermsCaller, terms
from tests.support.incident import incident

GPU = Limit("gpu", 1)
#: Steers a terminal; JSON has it as it is.
STEERS = "two\nlines\r\x07 ünï"


@pytest.fixture(autouse=True)
def _look_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "_AGAIN", 0.0)


def state(run: Run, limit: str) -> str:
    """The row of a limit or key as it stands."""
    (found,) = [line for line in run("status").lines if line.split("  ")[0] == limit]
    return found


def test_status_lists_limits_then_their_keys(control: ThrottleControl, run: Run, worker: TermsCaller) -> None:
    assert run("status").out == "No limits are known: no worker has declared any.\n"
    assert run("status", "--json").json == []
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
    lines = run("status", "--most", "2").lines
    assert (len(lines), lines[-1]) == (4, "These are the first 2; --most has more.")
    for key in ("acme", "zeta"):
        worker.arrive(f"{key} waits", of(key))
    worker.put("waits, too", of("zeta"))
    control.limit("tenant", key="acme").pause(by="ana")
    assert run("status").rows[3] == ["tenant", "2 (1 each)", "2", "2", "1 key paused; 2 keys full"]


def test_json_of_status_has_the_names_of_the_attributes(
    control: ThrottleControl, run: Run, worker: TermsCaller
) -> None:
    worker.arrive("t", ONE)
    control.limit("api").override(5, until=3600, by="ana", why=STEERS)
    (status,) = control.status()
    (row,) = run("status", "--json").json
    assert row.keys() == names(LimitStatus)
    numbers = {name: row[name] for name in ("name", "permits", "in_force", "held", "declared")}
    assert numbers == {"name": "api", "permits": 2, "in_force": 5, "held": 1, "declared": True}
    assert status.override
    assert status.override.until
    assert row["override"] == {
        "limit": "api", "by": "ana", "why": STEERS, "permits": 5, "rates": [],
        "since": status.override.since.isoformat(), "until": status.override.until.isoformat(),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("say", "state"),
    [
        (lambda limit: limit.pause(by="ana", why="incident 42"), "paused by ana (incident 42)"),
        (lambda limit: limit.disable(by="ana"), "disabled by ana"),
        (lambda limit: limit.override(7, by="ana"), "override 7 instead of 2 by ana"),
        (lambda limit: limit.override(1, by="ana"), "override 1 instead of 2 by ana; full"),
    ],
)
def test_state_of_an_override(
    control: ThrottleControl, run: Run, worker: TermsCaller, say: Callable[[Any], None], state: str
) -> None:
    worker.arrive("t", ONE)
    say(control.limit("api"))
    assert run("status").rows[1][3:] == [state]


def test_states_of_an_incident(run: Run, redis: Redis) -> None:
    """Each limit and each key with parked tasks has one."""
    incident(redis, keys=200)
    limits = {line.split()[0]: line for line in run("status").lines}
    assert list(limits) == ["LIMIT", "api", "gpu", "mail", "orders", "reports", "tenant", "user"]
    assert limits["LIMIT"].split() == ["LIMIT", "HELD", "PARKED", "KEYS", "RATES", "STATE"]
    assert limits["gpu"].endswith("full")
    assert limits["reports"].endswith("no worker takes it (queue exports)")
    assert "paused by ana (incident 42)" in limits["tenant"]
    assert limits["user"].endswith("no worker takes it (queue q)")
    again, keys = run("status", "--keys").out.split("\n\n")
    assert again.splitlines() == list(limits.values())
    heading, *rows = keys.splitlines()
    assert len(rows) == 200
    assert all(line[heading.index("STATE") :] for line in rows)


@pytest.mark.parametrize(
    ("held", "waits", "said"),
    [
        (GPU, terms(API, GPU).same, "its first task waits for gpu"),
        (GPU, terms(GPU, API).same, "its tasks wait in other lines"),
        (API, terms(API, cost=2).same, "its first task needs 2 permits"),
    ],
)
def test_state_of_a_limit_with_permits_free(
    run: Run, worker: TermsCaller, held: Limit, waits: Needs, said: str
) -> None:
    worker.take("holds", terms(held).same)
    worker.put("waits", waits)
    assert state(run, "api").endswith(said)


def test_a_first_task_that_goes_first_elsewhere_does_not_wait_for_itself(
    run: Run, worker: TermsCaller, redis: Redis
) -> None:
    worker.put("waits", terms(API, GPU).same)
    bar = json.dumps({"bar": [0, 9_000_000_000_000, "", "waits", 1]})
    redis.hset(KEY["overrides"], "gpu", bar)
    assert state(run, "api").endswith("no worker takes it (queue q)")


def test_state_is_looked_for_among_keys_and_groups(app: Any, run: Run, worker: TermsCaller, redis: Redis) -> None:
    """No key of the one is full, and the line of the other is in its own group."""
    eu = Limit("eu", 1, group="eu")
    add_task(app, "in_eu", eu)
    worker.put("waits", of("acme"), queue="nobody")
    TermsCaller(redis, "cccccccc", "q", prefix=f"{app.conf.throttle_prefix}:eu").put("waits", terms(eu).same)
    assert state(run, "tenant").endswith("no worker takes it (queue nobody)")
    assert state(run, "eu").endswith("no worker takes it (queue q)")
