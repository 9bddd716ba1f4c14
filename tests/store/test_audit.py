"""Changes at run time: the audit trail, written by the scripts that make them, and two overrides of one limit."""

from __future__ import annotations

import json

import pytest
from redis import Redis

from celery_throttle.core.limits import Limit
from tests.store.caller import Caller
from tests.store.lock_caller import LockCaller, plan_of
from tests.store.peek import KEY, lapse, peek
from tests.store.steering import Steering
from tests.store.terms_caller import TermsCaller, terms

API = Limit("api", 8)


@pytest.fixture
def declared(worker: Caller) -> None:
    worker.know(API)


@pytest.mark.usefixtures("declared")
def test_change_has_author_time_reason_and_old_value(steering: Steering, redis: Redis) -> None:
    steering.say(API, "override", 20, until="+60000", why="big day", by="ana")
    steering.say(API, "override", 3, why="too much", by="bob")
    second, first = steering.audit()
    assert (first.action, first.limit, first.key, first.by, first.why) == ("override", "api", None, "ana", "big day")
    assert (first.before, first.permits_before, first.permits_after) == (None, 8, 20)
    assert first.after == second.before
    assert first.after
    assert first.after.until
    assert (first.after.permits, (first.after.until - first.at).total_seconds()) == (20, 60)
    assert abs(first.at.timestamp() * 1000 - peek(redis).now) < 10_000
    assert (second.by, second.permits_before, second.permits_after) == ("bob", 20, 3)
    assert second.at >= first.at


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize(
    ("what", "end", "permits"), [("override", "reset", 1), ("pause", "resume", 8), ("disable", "enable", None)]
)
def test_end_has_the_value_that_it_ended(steering: Steering, what: str, end: str, permits: int | None) -> None:
    steering.say(API, what)
    steering.unsay(API, what, by="bob", why="it is over")
    last, first = steering.audit()
    assert (first.action, last.action) == (what, end)
    assert (last.by, last.why, last.before, last.after) == ("bob", "it is over", first.after, None)
    assert (first.permits_after, last.permits_before, last.permits_after) == (permits, permits, 8)


@pytest.mark.usefixtures("declared")
def test_change_without_effect_is_not_audited(steering: Steering, redis: Redis) -> None:
    assert steering.unsay(API, "pause") == 0
    assert steering.say(API, "pause", until="1") == -1
    assert steering.audit() == ()
    steering.say(API, "pause", until="+60000")
    redis.hset(KEY["overrides"], "api", '{"pause":[1,1,"ana","",1]}')  # its time has passed
    lapse(redis, "overrides:api")
    assert steering.unsay(API, "pause") == 0
    steering.say(API, "pause")
    assert [(each.action, each.before) for each in steering.audit()] == [("pause", None), ("pause", None)]


@pytest.mark.usefixtures("declared")
def test_of_a_key(steering: Steering) -> None:
    steering.say("api\x1facme", "override", 2)
    (change,) = steering.audit()
    assert (change.limit, change.key, change.permits_before, change.permits_after) == ("api", "acme", 8, 2)
    assert change.after
    assert change.after.limit == "api[acme]"


def test_of_a_lock(redis: Redis, steering: Steering) -> None:
    caller = LockCaller(redis, "aaaaaaaa", "q")
    caller.claim("t1", plan_of())
    assert caller.unlock("same", "t2", name="charge", by="ana", why="stuck") == 0
    assert caller.unlock("same", name="charge", by="ana", why="stuck") == 1
    (change,) = steering.audit()
    assert (change.action, change.task_id, change.task_name, change.limit) == ("unlock", "t1", "charge", None)
    assert (change.by, change.why) == ("ana", "stuck")


def test_the_newest_are_kept(steering: Steering, redis: Redis) -> None:
    for number in range(1, 206):
        steering.say(API, "override", number)
    found = steering.audit()
    assert [each.after.permits for each in found if each.after] == list(range(205, 5, -1))
    assert redis.zcard(KEY["audit"]) == 200


def test_they_are_in_order_though_the_clock_was_set_back(steering: Steering, redis: Redis) -> None:
    redis.hset(KEY["meta"], "stamp", "9000000000000000")  # the last number given, of a clock that was ahead
    for number in (1, 2, 3):
        steering.say(API, "override", number)
    assert [each.after.permits for each in steering.audit() if each.after] == [3, 2, 1]


# -- requests for several buckets --------------------------------------------------------------------------------------


def test_the_first_to_carry_out_a_request_changes_something(steering: Steering) -> None:
    assert [steering.say(API, "pause", request="r1", by=by) for by in ("ana", "bob")] == [1, 2]
    assert [steering.unsay(API, "pause", request="r2", by=by) for by in ("ana", "bob")] == [1, 2]
    assert [(each.action, each.by) for each in steering.audit()] == [("resume", "ana"), ("pause", "ana")]
    assert steering.say(API, "pause", request="r1") == 2, "as late as it may come"
    assert steering.stands(API).paused is None


def test_a_request_changes_several_buckets(steering: Steering) -> None:
    """An example is the end of a hold of a limit and of all its keys; a later request finds fewer of them."""
    assert [steering.say(name, "pause", request="r") for name in ("a", "b", "a")] == [1, 1, 2]
    assert steering.unsay("c", "hold", request="r") == 2, "something was done, if not there"
    assert steering.unsay("c", "hold", request="s") == 0
    assert len(steering.audit()) == 2


def test_repeated_pause_is_made_each_time(steering: Steering) -> None:
    assert [steering.say(API, "pause") for _ in range(2)] == [1, 1]
    assert len(steering.audit()) == 2


# -- permits and rate --------------------------------------------------------------------------------------------------


def rates(*rates: str, burst: int = 1) -> str:
    """Return the arguments of control.lua for an override of the rates."""
    limit = Limit("any", rate=list(rates), burst=burst)
    return json.dumps({"rates": [[rate.count, rate.period, each] for rate, each in limit.rates]})


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
