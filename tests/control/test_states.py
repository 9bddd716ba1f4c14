"""``celery throttle status``: limits before their keys, each with its numbers and its state."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from celery_throttle import Limit, ThrottleControl
from celery_throttle.control import rows as rows_module
from celery_throttle.store.limit_status import LimitStatus
from tests.control.conftest import Run, add_task
from tests.control.desk_story import DeskStory
from tests.control.test_looking import MAIL, ONE, fill, names, of
from tests.store.stories import stories
from tests.store.terms_caller import TermsCaller, terms
from tests.support.incident import incident

#: Steers a terminal; JSON has it as it is.
STEERS = "two\nlines\r\x07 ünï"


@pytest.fixture(autouse=True)
def _look_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "_AGAIN", 0.0)


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
    assert (len(lines), lines[-1]) == (4, "These are the first 2; there may be more: see --most.")
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


STATES = """
overrides and their authors:
    take t on=gpu:2; row gpu = 1 of 2 | 0; change gpu pause by=ana why=x; row gpu = 1 of 2 | 0 | paused by ana (x)
    change gpu resume; change gpu disable by=ana; row gpu = 1 | 0 | disabled by ana; change gpu enable
    change gpu override 7 by=ana; row gpu = 1 of 7 | 0 | override 7 instead of 2 by ana
    change gpu override 1 by=ana; row gpu = 1 of 1 | 0 | override 1 instead of 2 by ana, full
a limit whose first task waits for another:
    take holds on=gpu:1; park waits on=api:2+gpu:1; row api = 0 of 2 | 1 | its first task waits for gpu
a limit whose tasks wait in other lines:
    take holds on=gpu:1; park waits on=gpu:1+api:2; row api = 0 of 2 | 1 | its tasks wait in other lines
a limit whose first task needs more than are free:
    take holds on=api:2; park waits on=api:2 cost=2; row api = 1 of 2 | 1 | its first task needs 2 permits
a first task that goes first elsewhere does not wait for itself:
    park waits on=api:2+gpu:1; bar waits gpu; row api = 0 of 2 | 1 | no worker takes it (queue q)
a limit of which no key is full:
    park waits on=tenant[a]:1 queue=nobody; row tenant = 0 (1 each) | 1 | 1 | no worker takes it (queue nobody)
"""


@pytest.mark.parametrize("steps", stories(STATES))
def test_a_story_of_states(desk: DeskStory, steps: str) -> None:
    desk.tell(steps)


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


def test_a_limit_of_another_group_has_its_own_state(app: Any, desk: DeskStory, redis: Redis) -> None:
    """Its line is looked for in its own group."""
    eu = Limit("eu", 1, group="eu")
    add_task(app, "in_eu", eu)
    TermsCaller(redis, "cccccccc", "q", prefix=f"{app.conf.throttle_prefix}:eu").put("waits", terms(eu).same)
    assert desk.row("eu") == "0 of 1 | 1 | no worker takes it (queue q)"
