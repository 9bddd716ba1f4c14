"""Another rate at run time: bookings move with it, workers without a rate get a hint, and it ends by itself."""

from __future__ import annotations

import json

import pytest

from celery_throttle.core.limits import Limit
from tests.primitives.faults import StoreClock
from tests.store.steering import Steering
from tests.store.terms_caller import TermsCaller, terms

SECOND, DAY = 1_000_000, 86_400_000_000
MAIL = Limit("mail", rate="1/d")

#: The time of the store stands still until a test moves it.
pytestmark = pytest.mark.usefixtures("clock")


def rates(*rates: str, burst: int = 1) -> str:
    """Return the arguments of control.lua for an override of the rates."""
    limit = Limit("any", rate=list(rates), burst=burst)
    return json.dumps({"rates": [[rate.count, rate.period, each] for rate, each in limit.rates]})


def next_start(steering: Steering, limit: Limit | str) -> float:
    return steering.stands(limit).next_start_in


def test_a_start_that_was_booked_for_later_keeps_its_time(
    worker: TermsCaller, steering: Steering, clock: StoreClock
) -> None:
    mail = Limit("mail", rate="1/m")
    worker.know(terms(mail).same)
    booked = [steering.ask(steering.store.reserve("mail", mail.declared, 1, 1e12))[0] for _ in range(3)]
    assert [each - clock.now for each in booked] == [0, 60 * SECOND, 120 * SECOND]
    steering.say(mail, "override", rates("1/s"))
    assert steering.ask(steering.store.reserve("mail", mail.declared, 1, 1e12))[0] == clock.now + 121 * SECOND


def test_permits_and_rate_are_overridden_each_for_itself(worker: TermsCaller, steering: Steering) -> None:
    api = Limit("api", 2, rate="1/h")
    worker.know(terms(api).same)
    steering.say(api, "override", 5, by="ana")
    steering.say(api, "override", rates("2/h"), by="bob")
    stands = steering.stands(api)
    assert stands.override
    assert stands.rate_override
    assert (stands.override.by, stands.override.permits, stands.override.rates) == ("ana", 5, ())
    assert (stands.rate_override.by, stands.rate_override.permits) == ("bob", None)
    assert [str(each) for each in stands.rate_override.rates] == ["2/h"]
    assert (stands.in_force, [str(each) for each in stands.rates_in_force]) == (5, ["2/h"])
    assert steering.unsay(api, "override") == 1
    stands = steering.stands(api)
    assert (stands.in_force, stands.override, stands.rate_override) == (2, None, None)
    assert [str(each) for each in stands.rates_in_force] == ["1/h"]
    assert steering.unsay(api, "override") == 0


def test_both_at_once_are_one_change(worker: TermsCaller, steering: Steering) -> None:
    api = Limit("api", 2, rate="1/h")
    worker.know(terms(api).same)
    both = {"permits": 3, **json.loads(rates("2/h", burst=4))}
    steering.say(api, "override", json.dumps(both), why="both")
    steering.unsay(api, "override")
    ended, made = steering.audit()
    assert (made.action, made.permits_before, made.permits_after) == ("override", 2, 3)
    assert ([str(each) for each in made.rates_before], [str(each) for each in made.rates_after]) == (
        ["1/h"],
        ["2/h (burst 4)"],
    )
    assert made.after
    assert (made.after.permits, [str(each) for each in made.after.rates], made.after.why) == (
        3,
        ["2/h (burst 4)"],
        "both",
    )
    assert (made.before, ended.before, ended.after) == (None, made.after, None)
    assert ended.what == "reset api, 3 -> 2 permits, rate 2/h (burst 4) -> 1/h"


# -- a limit that has no rate ------------------------------------------------------------------------------------------

API = Limit("api", 4)
ONE = terms(API).same
