"""The speed of a line, by its limit's rate or by its counts."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_throttle.control.pace import Pace, pace_of
from celery_throttle.control.pace import _estimated as estimated
from celery_throttle.store.explain import Explanation
from celery_throttle.store.history import History, Period
from celery_throttle.store.limit_status import LimitStatus, RateStatus

NOW = datetime(2026, 1, 1, 12, 0, 30, tzinfo=timezone.utc)
NUMBERS = ("at_once", "wait_time", "parked", "ended", "failed", "run_time", "reclaimed", "sent_back", "refused")


def period(minutes_ago: int, *, started: int = 0, ended: int = 0, run_time: float = 0.0) -> Period:
    numbers: dict[str, Any] = dict.fromkeys((*NUMBERS, "duplicates"), 0)
    numbers |= {"at_once": started, "ended": ended, "run_time": ended * run_time}
    since = NOW.replace(second=0) - timedelta(minutes=minutes_ago)
    return Period(since, 60.0, waited=(), held_most=None, parked_most=None, **numbers)


def history(**minutes: dict[str, Any]) -> History:
    """Return counts of some minutes ago, by ``m3``: three minutes ago."""
    return History("api", NOW, tuple(period(ago, **minutes.get(f"m{ago}", {})) for ago in reversed(range(60))))


def status(permits: int | None = 2, held: int = 2, *rates: RateStatus, next_start_in: float = 0.0) -> LimitStatus:
    return LimitStatus(
        *("api", None, permits, rates, None, True, permits, None, None, None, None, held, 30, next_start_in, None)
    )


def test_rate_alone_gives_an_exact_time() -> None:
    """Eleven at thirty a minute are twenty seconds, for any recent starts."""
    paced = status(None, 0, RateStatus("30/m", 1), next_start_in=2.0)
    pace = pace_of(paced, history(m5={"started": 6, "ended": 6, "run_time": 1.0}))
    assert pace.by_rate
    assert pace.starts_in(1) == 2.0
    assert pace.starts_in(10) == pytest.approx(20.0)


def test_a_task_that_costs_more_takes_more_of_a_rate() -> None:
    paced = status(None, 0, RateStatus("30/m", 10), next_start_in=2.0)
    assert pace_of(paced, history(), cost=5).starts_in(2) == pytest.approx(12.0)


def test_ended_runs_give_the_pace_in_the_first_minute_of_a_burst() -> None:
    """Two at once, of two seconds each, are one a second; thirty in the half minute that has begun were none."""
    pace = pace_of(status(), history(m0={"started": 12, "ended": 10, "run_time": 2.0}))
    assert not pace.by_rate
    assert pace.starts_in(30) == pytest.approx(30.0)


def test_too_few_ended_runs_give_no_pace() -> None:
    assert pace_of(status(), history(m0={"started": 4, "ended": 2, "run_time": 2.0})).starts_in(1) is None


def test_a_full_limit_with_a_rate_is_no_faster_than_that() -> None:
    pace = pace_of(status(2, 2, RateStatus("30/m", 1)), history(m0={"started": 4, "ended": 4, "run_time": 0.1}))
    assert pace.starts_in(10) == pytest.approx(20.0)


def test_without_permits_whole_minutes_are_counted() -> None:
    pace = pace_of(status(None, 0), history(m3={"started": 1}, m2={"started": 60}, m1={"started": 60}))
    assert pace.starts_in(30) == pytest.approx(30.0)


@pytest.mark.parametrize(("run_time", "stands"), [(1.0, True), (30.0, True), (120.0, False)])
def test_line_that_stands_still_for_some_runs_has_no_estimate(run_time: float, *, stands: bool) -> None:
    pace = pace_of(status(), history(m5={"started": 12, "ended": 10, "run_time": run_time}))
    assert (pace.starts_in(1) is None) is stands
    assert pace.idle == (270.0 if stands else None)


def test_pace_of_a_key_needs_a_rate() -> None:
    counted = history(m0={"started": 12, "ended": 10, "run_time": 2.0})
    fields = {**vars(status()), "key": "acme"}
    assert pace_of(LimitStatus(**fields), counted).starts_in(1) is None


@pytest.mark.parametrize(
    ("pace", "starts_in", "said"),
    [
        (Pace(2.0, 2.0, by_rate=True), 20.0, ("At the rate of its limit its turn comes in about 20 s.",)),
        (Pace(2.0, 2.0), 20.0, ("As fast as its line moves now, its turn comes in about 20 s.",)),
        (Pace(idle=270.0), None, ("Nothing has started on limit api for 4m 30s: when its turn comes is not known.",)),
        (Pace(), None, ()),
    ],
)
def test_explanation_shows_the_pace_of_the_line(pace: Pace, starts_in: float | None, said: tuple[str, ...]) -> None:
    found = estimated(Explanation("t1", "parked", (), limit="api", place=10, limits=(status(),)), pace)
    assert (found.starts_in, found.reasons) == (starts_in, said)
