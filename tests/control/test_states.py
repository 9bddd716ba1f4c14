"""The states of ``celery throttle status``: one for each line in which tasks wait, and limits before their keys."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis import Redis

from celery_throttle import Limit, ThrottleControl, Throttled
from celery_throttle.control import rows as rows_module
from celery_throttle.core.policy import Needs
from tests.control.conftest import Run
from tests.store.peek import KEY
from tests.store.terms_caller import TermsCaller, terms
from tests.support.incident import API, GPU, TENANT, incident
from tests.support.shell import Ended


@pytest.fixture(autouse=True)
def _look_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "_AGAIN", 0.0)


def of(key: str) -> Needs:
    return terms(TENANT).needs({"keys": {"tenant": key}})


def rows(ended: Ended) -> dict[str, str]:
    """The rows of all tables, by limit or key, as they stand."""
    return {line.split("  ")[0]: line for line in ended.lines if line}


def test_status_of_an_incident_lists_limits_alone(run: Run, redis: Redis) -> None:
    incident(redis)
    ended = run("status")
    assert [line.split()[0] for line in ended.lines[1:]] == [
        "api",
        "gpu",
        "mail",
        "orders",
        "reports",
        "tenant",
        "user",
    ]
    assert ended.lines[0].split() == ["LIMIT", "HELD", "PARKED", "KEYS", "RATES", "STATE"]
    found = rows(ended)
    assert found["gpu"].endswith("full")
    assert found["reports"].endswith("no worker takes it (queue exports)")
    assert "paused by ana (incident 42)" in found["tenant"]
    assert found["user"].endswith("no worker takes it (queue q)")


def test_each_limit_and_key_with_parked_tasks_has_a_state(run: Run, redis: Redis) -> None:
    incident(redis, keys=200)
    ended = run("status", "--keys")
    heading = ended.lines[0].index("STATE")
    limits, keys = ended.out.split("\n\n")
    assert len(limits.splitlines()) == 8
    assert len(keys.splitlines()) == 201
    state = keys.splitlines()[0].index("STATE")
    assert all(line[state:] for line in keys.splitlines()[1:])
    assert all(
        line[heading:] for line in limits.splitlines() if line.split()[0] in {"gpu", "reports", "tenant", "user"}
    )


def test_numbers_of_a_limit_are_those_of_all_its_keys(app: Any, run: Run, worker: TermsCaller) -> None:
    for key in ("acme", "zeta"):
        worker.arrive(f"{key} holds", of(key))
        worker.put(f"{key} waits", of(key))
    worker.put("acme waits, too", of("acme"))
    ThrottleControl(app).limit("tenant", key="acme").pause(by="ana")
    ended = run("status")
    assert ended.rows[1] == ["tenant", "2 (1 each)", "3", "2", "1 key paused; 2 keys full"]
    listed = [row[0] for row in run("status", "--keys").rows if row]
    assert listed == ["LIMIT", "tenant", "LIMIT", "tenant[acme]", "tenant[zeta]"]


@pytest.mark.parametrize(
    ("held", "waits", "state"),
    [
        (GPU, terms(API, GPU).same, "its first task waits for gpu"),
        (GPU, terms(GPU, API).same, "its tasks wait in other lines"),
        (API, terms(API, cost=2).same, "its first task needs 2 permits"),
    ],
)
def test_state_of_a_limit_with_permits_free(
    run: Run, worker: TermsCaller, held: Limit, waits: Needs, state: str
) -> None:
    worker.take("holds", terms(held).same)
    worker.put("waits", waits)
    assert rows(run("status"))["api"].endswith(state)


def test_a_first_task_that_goes_first_elsewhere_does_not_wait_for_itself(
    run: Run, worker: TermsCaller, redis: Redis
) -> None:
    worker.put("waits", terms(API, GPU).same)
    bar = json.dumps({"bar": [0, 9_000_000_000_000, "", "waits", 1]})
    redis.hset(KEY["overrides"], "gpu", bar)
    assert rows(run("status"))["api"].endswith("no worker takes it (queue q)")


def test_the_oldest_task_of_a_limit_with_keys_has_a_state(run: Run, worker: TermsCaller) -> None:
    """Although no key is full."""
    worker.put("waits", of("acme"), queue="nobody")
    assert rows(run("status"))["tenant"].endswith("no worker takes it (queue nobody)")


def test_a_limit_of_another_group_has_its_own_state(app: Any, run: Run, redis: Redis) -> None:
    """Its line is looked for in its own group."""
    eu = Limit("eu", 1, group="eu")

    @app.task(base=Throttled, limit=eu, name="in_eu", shared=False)  # type: ignore[untyped-decorator]
    def in_eu() -> None: ...

    prefix = f"{app.conf.throttle_prefix}:eu"
    worker = TermsCaller(redis, "cccccccc", "q", prefix=prefix)
    worker.put("waits", terms(eu).same)
    assert rows(run("status"))["eu"].endswith("no worker takes it (queue q)")
