"""Locks in ``report`` that no run will free."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from redis import Redis

from celery_throttle import ThrottleControl
from celery_throttle.control.findings import Finding
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.store.parcel import pack
from tests.control.conftest import make_app
from tests.control.test_drain import take
from tests.control.test_looking import API
from tests.store.lock_caller import LockCaller, plan_of


@pytest.fixture
def app(server: EmbeddedServer, redis: object) -> Any:
    assert redis  # which empties the server
    return make_app(server.url, result_backend=server.url)


def left(app: Any) -> list[Finding]:
    report = ThrottleControl(app).report()
    return [each for each in report.alarms + report.remarks if each.kind == "lock-left"]


@pytest.mark.usefixtures("workers_answer")
@pytest.mark.parametrize(
    ("state", "age", "count"),
    [("SUCCESS", 0, 1), ("FAILURE", 0, 1), ("STARTED", 0, 0), ("SUCCESS", 3600, 0)],
    ids=["succeeded", "failed", "runs", "an earlier call with its id has succeeded"],
)
def test_lock_whose_task(app: Any, state: str, age: float, count: int) -> None:
    call = app.tasks["charge"].delay(17, amount=5)
    done = datetime.now(timezone.utc) - timedelta(seconds=age)
    about = {"status": state, "result": None, "date_done": done.isoformat(), "task_id": call.id}
    app.backend.set(app.backend.get_key_for_task(call.id), json.dumps(about))
    assert [each.alarm for each in left(app)] == [True] * count


@pytest.mark.usefixtures("workers_answer")
@pytest.mark.parametrize(("known", "count"), [("call", 0), ("another", 1)])
def test_lock_of_a_parked_task_that_a_live_worker(app: Any, redis: Redis, known: str, count: int) -> None:
    once = LockCaller(redis, "dddddddd", "q")
    once.store = replace(once.store, options={"task": {known: {}}})
    once.declare()
    once.look(0)
    app.send_task("call", (), {}, task_id="first", queue="q")
    once.put("first", API, lock=plan_of().spec, message=pack(take(app, "q")))
    found = left(app)
    assert [each.alarm for each in found] == [False] * count
    assert all("no live worker declares call with base=Throttled" in each.why for each in found)
