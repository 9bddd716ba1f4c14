"""Workers that declare a limit differently."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from celery_throttle import Limit, ThrottleControl
from celery_throttle.control.findings import Finding
from celery_throttle.control.report import diagnose
from celery_throttle.store.scripts import execute
from tests.control.test_looking import API, ONE
from tests.store.peek import KEY, be_away, peek
from tests.store.terms_caller import TermsCaller

pytestmark = pytest.mark.usefixtures("workers_answer")


def started(redis: Redis, name: str, *limits: Limit) -> TermsCaller:
    """A worker that has declared these, and has called."""
    caller = TermsCaller(redis, name, "q", lease=60)
    caller.declare(*limits)
    caller.look(0)
    return caller


def declared(app: Any) -> list[Finding]:
    verdict = ThrottleControl(app).report()
    return [each for each in verdict.alarms + verdict.remarks if each.kind == "declared"]


def test_differing_workers_are_an_alarm_though_the_newest_agrees(app: Any, redis: Redis) -> None:
    for name, permits in (("w1/1/aa", 2), ("w2/1/bb", 8), ("w3/1/cc", 2)):
        started(redis, name, Limit("api", permits))
    (found,) = declared(app)
    assert found.alarm
    assert found.limit == "api"
    assert found.what == "Workers declare limit api differently: 2 on w1/1/aa and w3/1/cc, 8 on w2/1/bb."
    assert found.why == "The declaration of the worker that started last holds for all: 2."
    assert found in diagnose(app).findings


def test_workers_of_other_tasks_differ_too(app: Any, redis: Redis) -> None:
    """Of limits that this code does not have."""
    started(redis, "w1/1/aa", Limit("far", 2))
    started(redis, "w2/1/bb", Limit("far", 2, max_parked=9))
    (found,) = declared(app)
    assert found.what == "Workers declare limit far differently: 2 on w1/1/aa, 2, max_parked=9 on w2/1/bb."


def test_difference_is_found_once(app: Any, redis: Redis) -> None:
    started(redis, "w1/1/aa", Limit("api", 2))
    started(redis, "w2/1/bb", Limit("api", 8))
    assert len(declared(app)) == 1
    assert len([each for each in diagnose(app).findings if each.limit == "api"]) == 1


def test_workers_that_agree_are_no_finding(app: Any, redis: Redis) -> None:
    for name in ("w1/1/aa", "w2/1/bb"):
        started(redis, name, API)
    assert declared(app) == []


def test_worker_that_left_does_not_count(app: Any, redis: Redis) -> None:
    started(redis, "w1/1/aa", Limit("api", 8)).leave()
    started(redis, "w2/1/bb", API)
    assert declared(app) == []
    assert [field for field in peek(redis).meta if field.startswith("declared:")] == ["declared:w2/1/bb"]


def test_worker_that_is_lost_does_not_count(app: Any, redis: Redis) -> None:
    started(redis, "w1/1/aa", Limit("api", 8))
    be_away(redis)
    started(redis, "w2/1/bb", API)
    assert declared(app) == []


def test_full_worker_that_only_renews_counts(app: Any, redis: Redis) -> None:
    """It makes no call for parked tasks as long as it has no free slot."""
    busy = started(redis, "w1/1/aa", Limit("api", 8))
    run = busy.take("held", ONE)
    be_away(redis)
    busy.renew(run)
    started(redis, "w2/1/bb", API)
    assert len(declared(app)) == 1


def test_declaration_ends_with_its_worker(redis: Redis) -> None:
    started(redis, "w1/1/aa", API)
    store = peek(redis)
    assert "meta:declared:w1/1/aa" in store.sets["ends"]


def test_pages_of_many_limits_are_one_declaration(app: Any, redis: Redis) -> None:
    caller = TermsCaller(redis, "w1/1/aa", "q")
    limits = {f"l{number}": "1" for number in range(120)}
    for call in caller.store.declarations("", limits.items(), worker="w1/1/aa"):
        execute(redis, call)
    caller.look(0)
    started(redis, "w2/1/bb", *(Limit(name, 2) for name in ("l0", "l119")))
    assert {each.limit for each in declared(app)} == {"l0", "l119"}


def test_foreign_entries_are_skipped(app: Any, redis: Redis) -> None:
    started(redis, "w1/1/aa", API)
    started(redis, "w2/1/bb", Limit("api", 8))
    for text in ("{", "[1]", '{"api": 7}', '{"api": "nine"}', '{"api": "[]"}'):
        redis.hset(KEY["meta"], "declared:w1/1/aa", text)
        assert declared(app) == [] or all("w1/1/aa" not in each.what for each in declared(app))
