"""The forms of `Retry-After`, as servers send it."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import httpx
import pytest

from celery_throttle import Limit, RateLimited


def response(**headers: str) -> httpx.Response:
    return httpx.Response(429, headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(30, 30), (0.5, 0.5), (timedelta(minutes=2), 120), ("31", 31), (" 1.5 ", 1.5), ("-3", 0), ("1e99", 315360000)],
)
def test_seconds(given: float | str | timedelta, seconds: float) -> None:
    assert RateLimited(given).retry_after == seconds


def test_a_date() -> None:
    then = datetime.now(timezone.utc) + timedelta(minutes=5)
    assert 290 < RateLimited(format_datetime(then, usegmt=True)).retry_after <= 300
    assert RateLimited("Wed, 21 Oct 2015 07:28:00 GMT").retry_after == 0, "it is over"


@pytest.mark.parametrize("given", [None, "  ", "soon", "nan", "Wed, 99 Oct 2015 07:28:00 GMT"])
def test_missing_delay_becomes_about_half_a_minute(given: str | None, caplog: pytest.LogCaptureFixture) -> None:
    several = {RateLimited(given).retry_after for _ in range(20)}
    assert all(20 <= each <= 40 for each in several)
    assert len(several) > 1, "not all at once"
    expected = f"Retry-After {given!r} is no number of seconds and no date" if given and given.strip() else ""
    assert expected in caplog.text


def test_the_response_itself() -> None:
    limited = RateLimited.from_response(response(Retry_After="7"), limit="api", max_rounds=5)
    assert (limited.retry_after, limited.limit, limited.max_rounds) == (7, "api", 5)
    assert 20 <= RateLimited.from_response(response()).retry_after <= 40
    date = response(Date="Wed, 21 Oct 2015 07:28:00 GMT", Retry_After="Wed, 21 Oct 2015 07:28:30 GMT")
    assert RateLimited.from_response(date).retry_after == 30, "by the clock of its server"


def test_it_comes_through_a_pickle_and_is_printed() -> None:
    limited = RateLimited(None, "api", 3)
    again = pickle.loads(pickle.dumps(limited))
    assert (again.retry_after, again.limit, again.max_rounds) == (limited.retry_after, "api", 3)
    assert str(RateLimited(29.973606)) == "asked too often, again in 29.974 s"
    assert str(RateLimited(2_000_000, limit=Limit("gpu", 4))) == "asked too often, again in 2000000 s"
    assert RateLimited(30, limit=Limit("gpu", 4)).limit == "gpu"
