"""Another rate at run time: bookings move with it, workers without a rate get a hint, and it ends by itself."""

from __future__ import annotations

import json

import pytest
from redis import Redis

from celery_throttle.core.facts import Result
from celery_throttle.core.limits import Limit
from tests.primitives.faults import StoreClock
from tests.store.caller import passed, started
from tests.store.peek import KEY, peek
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


def test_a_faster_rate_counts_from_the_last_start(worker: TermsCaller, steering: Steering, clock: StoreClock) -> None:
    mail = terms(MAIL).same
    assert worker.arrive("m1", mail)
    worker.put("m2", mail)
    clock.move(2 * SECOND)
    steering.say(MAIL, "override", rates("20/m"))
    assert next_start(steering, MAIL) == 1
    assert 1 <= worker.look(9).wait <= 1.01
    clock.move(SECOND)
    assert started(worker.look(9)) == ("m2",)
    assert next_start(steering, MAIL) == 3


def test_a_slower_rate_counts_from_the_last_start(worker: TermsCaller, steering: Steering, clock: StoreClock) -> None:
    mail = terms(Limit("mail", rate="20/m")).same
    assert worker.arrive("m1", mail)
    clock.move(2 * SECOND)
    steering.say(MAIL, "override", rates("1/m"))
    assert next_start(steering, MAIL) == 58
    assert steering.unsay(MAIL, "override") == 1
    assert next_start(steering, MAIL) == 1


def test_a_change_between_two_starts_leaves_no_trace(worker: TermsCaller, steering: Steering, redis: Redis) -> None:
    mail = terms(Limit("mail", rate="10/m", burst=5)).same
    for number in range(3):
        assert worker.arrive(f"m{number}", mail)
    before = peek(redis).hashes["rates"]
    for rate in ("1/d", "10/s", "10/m"):
        steering.say(MAIL, "override", rates(rate, burst=3))
        assert next_start(steering, MAIL) == {"1/d": 0, "10/s": 0, "10/m": 0}[rate], "two more might have started"
    steering.unsay(MAIL, "override")
    assert peek(redis).hashes["rates"] == before
    assert [bool(worker.arrive(f"n{number}", mail)) for number in range(3)] == [True, True, False]


def test_no_burst_is_given_twice(worker: TermsCaller, steering: Steering) -> None:
    """However often the rate changes: as many as might have started at once may still."""
    mail = terms(Limit("mail", rate="1/h", burst=3)).same
    assert worker.arrive("m0", mail)
    found = []
    for number, rate in enumerate(("2/h", "1/m", "30/m", "2/h", "1/m")):
        steering.say(MAIL, "override", rates(rate, burst=3))
        found.append(bool(worker.ask(f"m{number + 1}", mail)[0]))
    assert found == [True, True, False, False, False]


def test_a_smaller_burst_starts_the_next_after_one_spacing(worker: TermsCaller, steering: Steering) -> None:
    mail = terms(Limit("mail", rate="10/m", burst=5)).same
    for number in range(5):
        assert worker.arrive(f"m{number}", mail)
    steering.say(MAIL, "override", rates("10/m"))
    assert next_start(steering, MAIL) == 6
    steering.say(MAIL, "override", rates("1/h"))
    assert next_start(steering, MAIL) == 3600


def test_of_several_rates_each_goes_on_from_the_nearest(
    worker: TermsCaller, steering: Steering, clock: StoreClock
) -> None:
    mail = terms(Limit("mail", rate=["10/s", "100/h"], burst=[1, 3])).same
    for number in range(3):
        assert worker.arrive(f"m{number}", mail)
        clock.move(SECOND)
    slower = {"rates": [[5, SECOND, 1], [60, 3600 * SECOND, 3]]}
    steering.say(MAIL, "override", json.dumps(slower))
    assert 55 < next_start(steering, MAIL) < 56, "the hour's three are used up, the second's one is free"
    steering.say(MAIL, "override", rates("5/s"))
    assert next_start(steering, MAIL) == 0


def test_a_start_that_was_booked_for_later_keeps_its_time(
    worker: TermsCaller, steering: Steering, clock: StoreClock
) -> None:
    mail = Limit("mail", rate="1/m")
    worker.know(terms(mail).same)
    booked = [steering.ask(steering.store.reserve("mail", mail.declared, 1, 1e12))[0] for _ in range(3)]
    assert [each - clock.now for each in booked] == [0, 60 * SECOND, 120 * SECOND]
    steering.say(mail, "override", rates("1/s"))
    assert steering.ask(steering.store.reserve("mail", mail.declared, 1, 1e12))[0] == clock.now + 121 * SECOND


def test_start_that_did_not_begin_is_given_back_after_a_change(worker: TermsCaller, steering: Steering) -> None:
    mail = terms(Limit("mail", rate="1/h")).same
    held = worker.arrive("m1", mail)
    assert held
    steering.say(MAIL, "override", rates("2/h"))
    worker.end(held, "never")
    assert next_start(steering, MAIL) == 0


def test_an_override_of_one_key_comes_before_that_of_all_rates(worker: TermsCaller, steering: Steering) -> None:
    tenant = Limit("tenant", rate="1/h", key="tenant")
    needs = terms(tenant)
    for key in "ab":
        assert worker.arrive(key, needs.needs({"keys": {"tenant": key}}))
    steering.say("tenant\x1fa", "override", rates("1/m"))
    steering.say("tenant", "override", rates("2/h"))
    assert [next_start(steering, f"tenant\x1f{key}") for key in "ab"] == [60, 1800]
    steering.unsay("tenant\x1fa", "override")
    assert next_start(steering, "tenant\x1fa") == 1800
    steering.unsay("tenant", "override")
    assert next_start(steering, "tenant\x1fa") == 3600


@pytest.mark.parametrize("bucket", ["tenant", "tenant\x1fa"])
def test_rate_override_ends_by_itself_and_wakes_parked_tasks(
    bucket: str, worker: TermsCaller, steering: Steering, clock: StoreClock
) -> None:
    """Not after the day that the slower rate would take."""
    needs = terms(Limit("tenant", rate="10/s", key="tenant")).needs({"keys": {"tenant": "a"}})
    assert worker.arrive("t1", needs)
    steering.say(bucket, "override", rates("1/d"), until="+2000")
    worker.put("t2", needs)
    reply = worker.look(9)
    assert not reply.grants
    assert 2 <= reply.wait <= 2.01
    clock.move(2 * SECOND)
    assert started(worker.look(9)) == ("t2",)


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


def test_a_disabled_limit_has_no_other_rate_either(worker: TermsCaller, steering: Steering) -> None:
    mail = terms(MAIL).same
    steering.say(MAIL, "override", rates("2/d"))
    steering.say(MAIL, "disable")
    assert all(worker.arrive(f"m{number}", mail) for number in range(4))
    assert steering.stands(MAIL).rates_in_force == ()


def test_rate_changed_by_a_deploy_goes_on_from_the_last_start(worker: TermsCaller) -> None:
    """No burst is free for being declared anew."""
    for number in range(3):
        assert worker.arrive(f"m{number}", terms(Limit("mail", rate="1/h", burst=3)).same)
    faster = Limit("mail", rate="2/h", burst=3)
    worker.declare(faster)
    assert not worker.arrive("m3", terms(faster).same)


# -- a limit that has no rate ------------------------------------------------------------------------------------------

API = Limit("api", 4)
ONE = terms(API).same


def test_a_limit_without_a_rate_gets_one(worker: TermsCaller, steering: Steering, clock: StoreClock) -> None:
    assert worker.arrive("t0", ONE)
    steering.say(API, "override", rates("1/s"))
    assert [bool(worker.arrive(f"t{number}", ONE)) for number in range(1, 4)] == [True, False, False]
    clock.move(SECOND)
    assert started(worker.look(9)) == ("t2",)
    steering.unsay(API, "override")
    assert started(worker.look(9)) == ("t3",)


def test_workers_of_the_limit_learn_to_pass_on_no_permits(worker: TermsCaller, steering: Steering) -> None:
    """They take a bucket that has room, and no line, for one where only the number of permits counts."""
    assert worker.look(0).closed == ()
    held = worker.arrive("t0", ONE)
    assert held
    steering.say(API, "override", rates("10/s"))
    to = worker.arrival("t1", ONE)
    reply = worker.exchange(passed=[passed("t0", held.nonce, Result.SUCCESS, to)])
    assert (reply.closed, reply.open) == (("api",), ())
    assert next_start(steering, API) == 0.1, "permits passed on before the hint are counted"
    steering.unsay(API, "override")
    reply = worker.exchange(asked=[worker.arrival("t2", ONE)])
    assert (reply.closed, reply.open) == ((), ("api",))


def test_nothing_of_it_stays(worker: TermsCaller, steering: Steering, redis: Redis, clock: StoreClock) -> None:
    steering.say(API, "override", rates("1/s"))
    held = worker.arrive("t0", ONE)
    assert held
    worker.end(held)
    steering.unsay(API, "override")
    clock.move(2 * SECOND)
    worker.reap()
    assert not redis.exists(KEY["overrides"], KEY["rates"])
