"""Which revoked tasks a worker reports: those that are new in Celery's set."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from celery.utils.collections import LimitedSet
from celery.worker import state

from celery_throttle.worker.celery_side import revocation
from celery_throttle.worker.celery_side.revocation import Revoked


@pytest.fixture
def revoked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Celery's set, on a clock that moves with each look at it."""
    ticks = count(1000.0)
    monkeypatch.setattr("celery.utils.collections.time.monotonic", lambda: next(ticks))
    monkeypatch.setattr(revocation, "monotonic", lambda: next(ticks))
    each = LimitedSet(maxlen=50, expires=1000000)
    monkeypatch.setattr(state, "revoked", each)
    return each


def test_each_revocation_is_reported_once(revoked: Any) -> None:
    looks = Revoked()
    revoked.update(["a", "b", "c"])
    assert looks.new() == ["a", "b", "c"]
    for again in (["c"], ["a"], ["d", "c"]):
        revoked.update(again)
        assert (looks.new(), looks.new()) == (again, [])


def test_full_set_drops_the_oldest_and_reports_the_newest(revoked: Any) -> None:
    looks = Revoked()
    revoked.update(map(str, range(200)))
    looks.new()
    revoked.discard("199")
    revoked.update(["x", "y"])
    assert looks.new() == ["x", "y"]


@pytest.mark.parametrize("theirs", [1.0, 10.0**9])
def test_revocations_of_neighbours_have_times_of_other_hosts(revoked: Any, theirs: float) -> None:
    looks = Revoked()
    revoked.add("a")
    looks.new()
    revoked.add("theirs", theirs)  # as Celery before 5.7 did for each new broker connection
    looks.connected()
    assert set(looks.new()) == {"a", "theirs"}
    assert looks.new() == []
    revoked.add("b")
    assert (looks.new(), looks.new()) == (["b"], [])
