"""``history``, and its durations: from the counts of workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from celery_throttle import ConfigurationError, Limit, ThrottleControl
from tests.control.conftest import Run
from tests.control.hours import tell_counts
from tests.control.test_looking import fill
from tests.store.cost import commands
from tests.store.terms_caller import TermsCaller, terms
from tests.support.waiting import until

API, TENANT = Limit("api", 2), Limit("tenant", 1, key="tenant_id")


@pytest.fixture
def count(worker: TermsCaller) -> Callable[..., None]:
    """Have a worker send its counts: as many waited as started at once."""

    def tell(limit: Limit = API, *, at_once: int = 0, **numbers: float) -> None:
        tell_counts(worker, limit, at_once=at_once, waited=at_once, **numbers)

    return tell


def test_the_last_hour_and_day(
    control: ThrottleControl, run: Run, count: Callable[..., None], worker: TermsCaller
) -> None:
    worker.know(API)
    assert run("history", "api").lines == ["Nothing was counted."]
    assert run("history", "nope").code == 1
    fill(worker, 5)
    count(at_once=6, ended=4, failed=1, run_time=6000, sent_back=2)
    said = run("history", "api")
    assert (said.code, said.err) == (0, "")
    assert said.lines[0].split()[:3] == ["WHAT", "EACH", "MINUTE"]
    rows = {cells[0]: cells[1:] for cells in said.rows[1:]}
    assert {what: cells[1:] for what, cells in rows.items()} == {
        "started": ["12", "12"],
        "at once": ["6", "6"],
        "ended": ["4", "4"],
        "failed": ["1", "1"],
        "sent back (RateLimited)": ["2", "2"],
        "wait, 50% within": ["0.0 s", "0.0 s"],
        "wait, 95% within": ["1.3 s", "1.3 s"],
        "run time, on average": ["1.5 s", "1.5 s"],
        "held at once": ["2"],
        "parked at once": ["3"],
    }
    assert {len(cells[0]) for cells in rows.values()} == {60}
    assert rows["started"][0] in ("\u00b7" * 59 + "\u2588", "\u00b7" * 58 + "\u2588\u00b7")
    history = control.limit("api").history()
    (line,) = str(history).splitlines()
    begin = f"api since {history.periods[0].since:%Y-%m-%d %H:%M}:00 UTC: 12 started, 4 ended, 1 failed,"
    assert line.startswith(begin)
    assert line.endswith(", 95% within 1.3 s")
    said = run("history", "api", "--json").json
    assert (said["limit"], len(said["periods"]), said["total"]["at_once"]) == ("api", 60, 6)
    assert (said["total"]["run_time"], said["periods"][-1]["length"]) == (6.0, 60)
    said = run("history", "api", "--day")
    assert said.lines[0].split()[1:5] == ["EACH", "QUARTER", "OF", "AN"]
    assert len(said.rows[1][1]) == 96


def test_the_last_hour_of_many_limits_in_short(
    control: ThrottleControl, run: Run, count: Callable[..., None], worker: TermsCaller, redis: Redis
) -> None:
    worker.declare(API, TENANT, *(Limit(f"limit-{number}", 1) for number in range(98)))
    count(at_once=6)
    count(TENANT, at_once=2)
    worker.arrive("t", terms(TENANT).needs({"keys": {"tenant": "acme"}}))
    rows = {(each.name, each.key): each for each in control.status(last_hour=True)}
    assert {bucket for bucket, each in rows.items() if each.last_hour} == {("api", None), ("tenant", None)}
    hour = rows["api", None].last_hour
    assert hour
    assert (sum(hour.started), sum(hour.waited), hour.wait_p95) == (12, 6, 1.28)
    assert control.limit("tenant", key="acme").status(last_hour=True).last_hour is None
    assert all(each.last_hour is None for each in control.status()), "without a request"
    shown = {(each["name"], each["key"]): each["last_hour"] for each in run("status", "--json").json}
    assert len(shown) == 101
    assert shown["limit-0", None] is shown["tenant", "acme"] is None

    def looks() -> tuple[Any, ...]:
        hour = control.limit("api").status(last_hour=True).last_hour
        assert hour
        read = {"started": list(hour.started), "waited": list(hour.waited), "wait_p95": hour.wait_p95}
        rows = (*run("status", "--json").json, *run("show", "api", "--json").json["status"])
        return read, *(row["last_hour"] for row in rows if row["name"] == "api")

    until(lambda: (found := looks()) == (found[0],) * 3, describe=looks)  # all within one minute of the clock

    calls = []
    for last_hour in (False, True):
        with commands(redis) as made:
            control.status(last_hour=last_hour)
        calls.append(made["evalsha"])
    assert calls[1] - calls[0] == 1, "a hundred limits with one call"


def test_when_its_turn_comes(
    control: ThrottleControl, run: Run, count: Callable[..., None], worker: TermsCaller
) -> None:
    fill(worker, 32)
    assert control.explain("t4").starts_in is None, "nothing has started"
    count(at_once=10, ended=8, run_time=16_000)  # two at once, of two seconds each
    told = control.explain("t31")
    assert told.starts_in == pytest.approx(30)
    assert told.reasons[-1] == "As fast as its line moves now, its turn comes in about 30 s."
    assert control.explain("t0").starts_in is None, "it runs"
    assert any(line.endswith("30 s") for line in run("show", "api").lines)
    assert control.limit("api").forecast(4).gone_in == pytest.approx(30)
    assert "As fast as it moves now, the line is gone in about 30 s." in run("set", "api", "4", "--dry-run").out

    control.limit("api").pause()
    assert control.explain("t31").starts_in is None


def test_nothing_is_counted_of_one_key(
    control: ThrottleControl, run: Run, count: Callable[..., None], worker: TermsCaller
) -> None:
    fill(worker, 3, terms(TENANT).needs({"keys": {"tenant": "acme"}}))
    count(TENANT, at_once=30, ended=30, run_time=30_000)
    assert control.explain("t2").starts_in is None
    assert "STARTS IN ABOUT" not in run("show", "tenant").out
    assert "gone in" not in run("set", "tenant", "2", "--key", "acme", "--dry-run").out
    with pytest.raises(ConfigurationError, match=r"all its keys together.*throttle.limit\('tenant'\).history\(\)"):
        control.limit("tenant", key="acme").history()


def test_counters(control: ThrottleControl, count: Callable[..., None]) -> None:
    count(at_once=6, ended=4, failed=1, run_time=6000, wait_time=9000)
    said = control.metrics().splitlines()
    for line in (
        'celery_throttle_started_total{group="",limit="api"} 12',
        'celery_throttle_ended_total{group="",limit="api"} 4',
        'celery_throttle_run_seconds_total{group="",limit="api"} 6',
        'celery_throttle_wait_seconds_bucket{group="",le="0",limit="api"} 6',
        'celery_throttle_wait_seconds_bucket{group="",le="0.32",limit="api"} 6',
        'celery_throttle_wait_seconds_bucket{group="",le="1.28",limit="api"} 12',
        'celery_throttle_wait_seconds_bucket{group="",le="+Inf",limit="api"} 12',
        'celery_throttle_wait_seconds_count{group="",limit="api"} 12',
        'celery_throttle_wait_seconds_sum{group="",limit="api"} 9',
    ):
        assert line in said
