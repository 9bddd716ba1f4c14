"""Reclaiming the permits of lost workers, on demand."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from celery_throttle import Limit, ThrottleControl
from celery_throttle.control.reader import Reclaimed
from celery_throttle.store.needs import Need
from tests.control.test_looking import fill
from tests.store.peek import be_away, end_moment, expire
from tests.store.terms_caller import TermsCaller, terms


def test_very_many_of_them(app: Any, worker: TermsCaller, redis: Redis) -> None:
    """More than one call takes."""
    many = terms(Limit("wide", 1000)).same
    fill(worker, 230, many)
    expire(redis, *(f"t{number}" for number in range(230)))
    cleared = ThrottleControl(app).reap()
    assert len({each.task_id for each in cleared}) == 230
    assert cleared[0] == Reclaimed(cleared[0].task_id, (Need("wide", None, 1),))
    assert ThrottleControl(app).limit("wide").status().held == 0


def test_reap_after_long_silence_gives_holders_a_moment(
    app: Any, worker: TermsCaller, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reaper waits for that moment, since there may be no later call."""
    worker.arrive("lost", terms(Limit("gpu", 1)).same)
    be_away(redis)
    waited: list[float] = []

    def sleep(pause: float) -> None:
        waited.append(pause)
        end_moment(redis)

    monkeypatch.setattr("celery_throttle.clients.time.sleep", sleep)
    (cleared,) = ThrottleControl(app).reap()
    assert cleared.task_id == "lost"
    assert waited == [4.01]
