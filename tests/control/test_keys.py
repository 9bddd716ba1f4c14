"""The keys of a limit, and identity locks by their identity."""

from __future__ import annotations

from typing import Any

import pytest

from celery_throttle import ConfigurationError, Limit, ThrottleControl
from celery_throttle.control import reader
from tests.control.conftest import Run
from tests.control.test_looking import ONE, of
from tests.store.terms_caller import TermsCaller


def test_stopped_and_crowded_keys_come_first(app: Any, worker: TermsCaller) -> None:
    for tenant, count in (("quiet", 1), ("busy", 4), ("some", 2)):
        for number in range(count):
            worker.arrive(f"{tenant}{number}", of(tenant))
    worker.arrive("t", ONE)
    limit = ThrottleControl(app).limit("tenant")
    ThrottleControl(app).limit("tenant", key="gone").pause()
    found = limit.keys()
    assert [each.key for each in found.rows] == ["gone", "busy", "some", "quiet"]
    assert [each.parked for each in found.rows] == [0, 3, 1, 0]
    assert (found.known, found.cut) == (4, False)
    fewer = limit.keys(most=2)
    assert ([each.key for each in fewer.rows], fewer.known) == (["gone", "busy"], 4)


def test_where_there_are_none(app: Any, worker: TermsCaller) -> None:
    worker.arrive("t", ONE)
    worker.arrive("a", of("acme"))
    for limit in (ThrottleControl(app).limit("api"), ThrottleControl(app).limit("tenant", key="acme")):
        assert (limit.keys().rows, limit.keys().known) == ((), 0)
    with pytest.raises(ConfigurationError, match="most must be"):
        ThrottleControl(app).limit("tenant").keys(most=0)


def test_keys_reports_that_it_looked_at_a_part(app: Any, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        worker.arrive(f"t{number}", of(f"k{number}"))
    monkeypatch.setattr(reader, "_NAMES", 5)
    found = ThrottleControl(app).limit("tenant").keys()
    assert (found.known, found.cut) == (5, True)


def test_a_lock_is_taken_away_by_its_identity(app: Any, run: Run, worker: TermsCaller) -> None:
    throttle = ThrottleControl(app)
    charge = app.tasks["charge"]
    worker.know(None)
    for order, unlock in (
        (1, lambda identity: throttle.unlock(identity, by="ana", why="stuck")),
        (2, lambda identity: run("unlock", "--identity", identity, "--by", "ana", "--json").json["unlocked"]),
    ):
        charge.apply_async((order, 5))
        (lock,) = throttle.locks()
        assert unlock(lock.identity) is True
        assert throttle.locks() == ()
        assert unlock(lock.identity) is False
        change = throttle.audit()[0]
        assert (change.action, change.by, change.task_id) == ("unlock", "ana", lock.task_id)


def test_parked_tasks_of_more_keys_than_a_page_are_all_listed(app: Any, worker: TermsCaller) -> None:
    worker.know(Limit("tenant", 1, key="tenant_id"))
    ThrottleControl(app).limit("tenant").pause()
    for number in range(350):
        worker.put(f"t{number}", of(f"k{number}"))
    throttle = ThrottleControl(app)
    assert len({each.task_id for each in throttle.limit("tenant").parked(most=1000)}) == 350
    assert len(throttle.parked(most=1000)) == 350
    assert len(throttle.limit("tenant").parked(most=101)) == 101
