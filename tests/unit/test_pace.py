"""The speed of a line, by its limit's rate or by its counts."""

from __future__ import annotations

from dataclasses import replace
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
    burst = status(None, 0, RateStatus("30/m", 10), next_start_in=2.0)
    assert pace_of(burst, history(), cost=5).starts_in(2) == pytest.approx(12.0), "it takes more starts of the rate"


@pytest.mark.parametrize(
    ("of", "minutes", "place", "seconds"),
    [
        # Two at once, of two seconds each, are one a second; thirty in the half minute that has begun were none.
        pytest.param(status(), {"m0": (12, 10, 2.0)}, 30, 30.0, id="by the runs that ended"),
        pytest.param(status(), {"m0": (4, 2, 2.0)}, 1, None, id="too few runs ended"),
        pytest.param(status(2, 2, RateStatus("30/m", 1)), {"m0": (4, 4, 0.1)}, 10, 20.0, id="no faster than its rate"),
        pytest.param(status(None, 0), {"m3": (1, 0, 0), "m2": (60, 0, 0), "m1": (60, 0, 0)}, 30, 30.0, id="by minutes"),
        pytest.param(replace(status(), key="acme"), {"m0": (12, 10, 2.0)}, 1, None, id="of a key without a rate"),
    ],
)
def test_pace_by_counts(of: LimitStatus, minutes: dict[str, Any], place: int, seconds: float | None) -> None:
    counted = {name: dict(zip(("started", "ended", "run_time"), each, strict=True)) for name, each in minutes.items()}
    pace = pace_of(of, history(**counted))
    assert not pace.by_rate
    assert pace.starts_in(place) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(("run_time", "stands"), [(1.0, True), (30.0, True), (120.0, False)])
def test_line_that_stands_still_for_some_runs_has_no_estimate(run_time: float, *, stands: bool) -> None:
    pace = pace_of(status(), history(m5={"started": 12, "ended": 10, "run_time": run_time}))
    assert (pace.starts_in(1) is None) is stands
    assert pace.idle == (270.0 if stands else None)


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
