"""Another rate at run time: ``celery throttle set LIMIT --rate 50/m``, and the output that shows it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from celery_throttle import ConfigurationError, Limit, ThrottleControl
from celery_throttle.control.limit_control import LimitControl
from celery_throttle.signals import limit_changed
from celery_throttle.store.limit_status import RateStatus
from tests.control.conftest import Run
from tests.control.test_looking import API, fill, of
from tests.store.caller import started
from tests.store.terms_caller import TermsCaller, terms
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("workers_answer")

MAIL = Limit("mail", rate="60/h", burst=2)
MAILS = terms(MAIL).same
BOTH = Limit("both", 3, rate=["10/s", "100/h"], burst=[1, 20])


@pytest.fixture
def mail(app: Any, worker: TermsCaller) -> LimitControl:
    worker.know(MAIL)
    return ThrottleControl(app).limit("mail")


# -- the change, and its end -------------------------------------------------------------------------------------------


def test_a_rate_is_set_and_reset(mail: LimitControl, run: Run) -> None:
    ended = run("set", "mail", "--rate", "30/m", "--for", "2h", "--by", "ana", "--why", "their big day")
    assert (ended.code, ended.err) == (0, "")
    assert ended.rows[0] == ["LIMIT", "HELD", "PARKED", "RATES", "STATE"]
    assert ended.rows[1][:4] == ["mail", "0", "0", "30/m"]
    assert ended.rows[1][4].startswith("rate override 30/m (burst 2) instead of 60/h (burst 2) by ana until ")
    status = mail.status()
    said = status.rate_override
    assert said
    assert said.until
    assert (said.by, said.why, said.until - said.since) == ("ana", "their big day", timedelta(hours=2))
    assert (status.override, status.rates, status.rates_in_force) == (
        None,
        (RateStatus("60/h", 2),),
        (RateStatus("30/m", 2),),
    )
    assert " rate override 30/m (burst 2) instead of 60/h (burst 2) by ana until " in str(status)
    ended = run("reset", "mail")
    assert (ended.code, ended.rows[1][3:]) == (0, ["60/h"])
    assert run("reset", "mail").lines[0] == "mail was not overridden."


def test_both_at_once(app: Any, worker: TermsCaller, run: Run) -> None:
    worker.know(BOTH)
    ended = run("set", "both", "5", "--rate", "5/s", "--rate", "50/h", "--burst", "1", "--burst", "9")
    assert (ended.code, ended.err) == (0, "")
    limit = ThrottleControl(app).limit("both")
    status = limit.status()
    assert (status.in_force, status.rates_in_force) == (5, (RateStatus("5/s", 1), RateStatus("50/h", 9)))
    (change,) = limit.audit()
    assert change.what == ("override both, 3 -> 5 permits, rate 10/s and 100/h (burst 20) -> 5/s and 50/h (burst 9)")
    assert run("audit", "both").rows[1][2] == change.what


def test_the_burst_is_that_of_the_code(app: Any, worker: TermsCaller) -> None:
    """Where it has as many rates; else 1."""
    worker.know(BOTH)
    limit = ThrottleControl(app).limit("both")
    limit.override(rate=["5/s", "50/h"])
    assert limit.status().rates_in_force == (RateStatus("5/s", 1), RateStatus("50/h", 20))
    limit.override(rate="5/s")
    assert limit.status().rates_in_force == (RateStatus("5/s", 1),)
    limit.override(rate="5/s", burst=7)
    assert limit.status().rates_in_force == (RateStatus("5/s", 7),)


def test_a_limit_with_permits_alone_gets_a_rate(app: Any, run: Run, worker: TermsCaller) -> None:
    worker.know(API)
    assert run("set", "api", "--rate", "1/h").rows[1][3] == "1/h"
    fill(worker, 2)
    assert [each.task_id for each in ThrottleControl(app).holders("api")] == ["t0"]
    assert run("explain", "t1").lines[1].startswith("The rate of limit api (1/h, instead of none since ")


def test_a_limit_with_a_rate_alone_gets_permits(mail: LimitControl, worker: TermsCaller, run: Run) -> None:
    """They hold beside the rate, and the table shows that."""
    assert run("set", "mail", "1", "--by", "ana").rows[1] == ["mail", "0 of 1", "0", "60/h", "override 1 by ana"]
    fill(worker, 2, MAILS)
    assert [each.task_id for each in mail.holders()] == ["t0"]
    mail.reset()
    assert started(worker.look(9)) == ("t1",)


def test_of_one_key(app: Any, run: Run, worker: TermsCaller) -> None:
    run("set", "tenant", "--key", "acme", "--rate", "1/h")
    for tenant in ("acme", "zeta"):
        for number in range(2):
            held = worker.arrive(f"{tenant}{number}", of(tenant))
            if held:
                worker.end(held)
    rows = {each.key: each for each in ThrottleControl(app).limit("tenant").keys().rows}
    assert rows["acme"].parked == 1
    assert "zeta" not in rows, "it has ended, and no rate holds it back"


def test_workers_get_the_new_rate(mail: LimitControl, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Any] = []

    def hear(sender: str, event: Any, **_: Any) -> None:
        heard.append((sender, event.action, event.permits, event.rates))

    limit_changed.connect(hear)
    with caplog.at_level("INFO"):
        mail.override(4, rate="30/m", by="ana", until=60)
    limit_changed.disconnect(hear)
    assert heard == [("mail", "override", 4, (RateStatus("30/m", 2),))]
    (line,) = [each for each in caplog.messages if "override" in each]
    assert line.startswith("Limit mail: override 4, rate 30/m (burst 2) by ana, until 60")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "override needs a number of permits or a rate: write override(5), or override(rate='50/m')"),
        ({"burst": 5}, "override needs a number of permits or a rate: write override(rate='50/m', burst=5)"),
        ({"permits": 5, "burst": 2}, "burst needs a rate beside it: write override(5, rate='50/m', burst=2)"),
        ({"permits": "50/m"}, "got '50/m': write override(rate='50/m')"),
        ({"rate": "50 per minute"}, "write '50/m'"),
        ({"rate": 50}, "got 50: write '10/s'"),
        ({"rate": "50/m", "burst": 0}, "Limit 'mail': burst must be a whole number"),
        ({"rate": ["50/m", "10/m"]}, "Limit 'mail': 50/m never matters beside 10/m"),
    ],
)
def test_impossible_rates_are_refused(mail: LimitControl, given: dict[str, Any], said: str) -> None:
    for method in (mail.override, mail.forecast):
        with pytest.raises(ConfigurationError, match="Limit ") as raised:
            method(**given)
        assert said.replace("override", method.__name__) in str(raised.value)
    assert mail.audit() == ()


# -- forecasts ---------------------------------------------------------------------------------------------------------


def test_forecast_of_another_rate(mail: LimitControl, worker: TermsCaller, run: Run) -> None:
    fill(worker, 7, MAILS)
    ended = run("set", "mail", "--rate", "1/m", "--burst", "1", "--dry-run")
    assert (ended.code, ended.err) == (0, "")
    assert ended.lines[:2] == [
        "mail: rate 1/m instead of 60/h (burst 2).",
        "0 tasks would start at once.",
    ]
    assert ended.lines[2].startswith("5 tasks would wait on: the rate of limit mail (1/m) allows the next start in ")
    assert ended.lines[3:] == ["At 1/m it takes 4m 0s at the least until the line is gone."]
    found = mail.forecast(rate="1000/s", burst=5)
    assert (found.rates, found.permits, found.least) == ((RateStatus("1000/s", 5),), None, 0)
    assert mail.status().rate_override is None


@pytest.mark.parametrize("rate", ["1/m", "1000/s"])
def test_forecast_of_a_rate_matches_the_outcome(mail: LimitControl, worker: TermsCaller, rate: str) -> None:
    fill(worker, 3, MAILS)
    until(lambda: mail.forecast(4, rate="1000/s", burst=1).starts)  # a millisecond after the last start
    said = mail.forecast(4, rate=rate, burst=1)
    mail.override(4, rate=rate, burst=1)
    assert said.starts == len(started(worker.look(9)))
    assert str(said).splitlines()[0] == f"mail: 4 permits instead of any number, rate {rate} instead of 60/h (burst 2)."


# -- output ------------------------------------------------------------------------------------------------------------


def test_report_names_the_author_of_a_slow_rate(mail: LimitControl, worker: TermsCaller, app: Any) -> None:
    fill(worker, 4, MAILS)
    mail.override(rate="1/h", by="ana", why="incident 42")
    report = ThrottleControl(app).report(patience=0)
    (found,) = [each for each in report.alarms if each.kind == "overridden"]
    assert found.what.startswith("Limit mail has the rate 1/h (burst 2) instead of 60/h (burst 2): 2 tasks wait")
    assert found.why.endswith("by ana, because: incident 42.")
    assert found.do == ("celery -A proj throttle reset mail",)
    mail.override(rate="70/h")
    found = next(each for each in ThrottleControl(app).report(patience=0).remarks if each.kind == "overridden")
    assert (found.alarm, found.do) == (False, ())


def test_explain_names_the_source_of_the_rate(mail: LimitControl, worker: TermsCaller, app: Any) -> None:
    fill(worker, 3, MAILS)
    mail.override(rate="1/h", by="ana")
    (why, *_) = ThrottleControl(app).explain("t2").reasons
    assert why.startswith("The rate of limit mail (1/h, instead of 60/h (burst 2) since ")
    assert " by ana) allows the next start in " in why
