"""Workers that declare a limit differently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from celery_throttle import Limit, ThrottleControl
from celery_throttle.control.checks import diagnose
from celery_throttle.control.findings import Finding
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


def only_renew(busy: TermsCaller, redis: Redis) -> None:
    """Make no call for parked tasks, as a worker without a free slot."""
    run = busy.take("held", ONE)
    be_away(redis)
    busy.renew(run)


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
    app: Any, redis: Redis, permits: int, happens: Callable[[TermsCaller, Redis], None], found: int
) -> None:
    happens(started(redis, "w1/1/aa", Limit("api", permits)), redis)
    started(redis, "w2/1/bb", API)
    assert len(declared(app)) == found


def test_declaration_ends_with_its_worker(redis: Redis) -> None:
    worker = started(redis, "w1/1/aa", API)
    assert "meta:declared:w1/1/aa" in peek(redis).sets["ends"]
    worker.leave()
    assert not [field for field in peek(redis).meta if field.startswith("declared:")]


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
        assert all("w1/1/aa" not in each.what for each in declared(app))
