"""``celery throttle set LIMIT N --dry-run``, ``limit.forecast(N)``: compared with the effect of the number."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from celery_throttle import ConfigurationError, Limit, ThrottleControl
from celery_throttle.control import forecast
from celery_throttle.control.forecast import Forecast
from celery_throttle.control.play import Bound
from celery_throttle.core.naming import outside_queue
from tests.control.conftest import Run
from tests.control.test_looking import API, ONE, TENANT, fill, names, of
from tests.store.caller import started
from tests.store.peek import KEY, peek
from tests.store.terms_caller import TermsCaller, terms

pytestmark = pytest.mark.usefixtures("workers_answer")

BOTH = terms(API, TENANT)
DRAINS = "more run than may then: none starts in their place until they have ended."


def said(app: Any, permits: int, limit: str = "api", key: str | None = None) -> Forecast:
    return ThrottleControl(app).limit(limit, key=key).forecast(permits)


def all_started(worker: TermsCaller) -> int:
    """How many really start, where there are slots for all."""
    count = 0
    while True:
        reply = worker.look(50)
        count += len(started(reply))
        if not reply.more and not reply.grants:
            return count


# -- how many start ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tasks", "permits", "lines"),
    [
        (12, 5, ["api: 5 permits instead of 2.", "3 tasks would start at once, if workers have slots for them.",
                 "7 tasks would wait on: limit api is full, 5 of 5 permits are held then."]),
        (4, 9, ["api: 9 permits instead of 2.", "2 tasks would start at once, if workers have slots for them.",
                "No task would wait for it any longer."]),
        (1, 9, ["api: 9 permits instead of 2.", "0 tasks would start at once.", "No task waits for it."]),
        (3, 1, ["api: 1 permit instead of 2.", f"1 {DRAINS}", "0 tasks would start at once.",
                "1 task would wait on: limit api is full, 2 of 1 permits are held then."]),
    ],
    ids=["some start", "all start", "none waits", "more run already"],
)  # fmt: skip
def test_dry_run_prints(app: Any, run: Run, worker: TermsCaller, tasks: int, permits: int, lines: list[str]) -> None:
    fill(worker, tasks)
    ended = run("set", "api", str(permits), "--dry-run")
    assert (ended.code, ended.err, ended.lines) == (0, "", lines)
    assert ThrottleControl(app).limit("api").status().override is None


def test_as_json(run: Run, worker: TermsCaller) -> None:
    fill(worker, 4)
    shown = run("set", "api", "3", "--dry-run", "--json").json
    assert shown.keys() == names(Forecast)
    assert (shown["starts"], shown["permits"], shown["permits_before"], shown["parked"]) == (1, 3, 2, 2)
    (bound,) = shown["bounds"]
    assert bound.keys() == names(Bound)
    assert (bound["limit"], bound["tasks"]) == ("api", 1)


# -- the next bound ----------------------------------------------------------------------------------------------------


def test_another_limit(app: Any, worker: TermsCaller) -> None:
    fill(worker, 2)
    for number in range(4):
        worker.put(f"w{number}", BOTH.needs({"keys": {"tenant": "acme"}}))
    worker.put("other", BOTH.needs({"keys": {"tenant": "zeta"}}))
    worker.look()  # they have come to the line of the limit that refuses them
    found = said(app, 10)
    assert found.starts == 2
    assert [(each.kind, each.limit, each.key, each.tasks) for each in found.bounds] == [("full", "tenant", "acme", 3)]
    assert "limit tenant[acme] is full, 1 of 1 permits are held then" in found.bounds[0].why
    ThrottleControl(app).limit("api").override(10)
    assert all_started(worker) == 2


@pytest.mark.parametrize(
    ("change", "starts", "why"),
    [
        (lambda limit: limit.pause(), 0, "limit api is paused"),
        (lambda limit: limit.disable(), 2, ""),
    ],
)
def test_forecast_with_overrides(
    app: Any, worker: TermsCaller, change: Callable[[Any], None], starts: int, why: str
) -> None:
    fill(worker, 4)
    change(ThrottleControl(app).limit("api"))
    found = said(app, 3)
    assert (found.starts, [each.why for each in found.bounds]) == (starts, [why] if why else [])
    ThrottleControl(app).limit("api").override(3)
    assert all_started(worker) == starts


def test_a_hold(app: Any, worker: TermsCaller) -> None:
    worker.send_back(worker.take("t", ONE), 60)
    assert [(each.kind, each.why) for each in said(app, 9).bounds] == [("held-back", "limit api is held back")]


def test_a_rate(app: Any, worker: TermsCaller) -> None:
    mail = terms(Limit("mail", 1, rate="1/h", burst=3)).same
    fill(worker, 6, mail)
    found = said(app, 9, "mail")
    assert (found.starts, found.at_most) == (3, True)  # of a burst of 3, of which one is taken
    assert found.bounds[0].kind == "rate"
    assert found.bounds[0].why == "the rate of limit mail (1/h) allows no more at once"
    assert str(found).splitlines()[1].startswith("At most 3 tasks would start at once")
    ThrottleControl(app).limit("mail").override(9)
    assert all_started(worker) == 2
    assert "allows the next start in" in said(app, 10, "mail").bounds[0].why


def test_forecast_for_a_queue_without_consumer(app: Any, worker: TermsCaller) -> None:
    fill(worker, 2)
    worker.put("elsewhere", ONE, queue="mail")
    worker.put("here", ONE)
    worker.put("outside", ONE, queue=outside_queue("4711"), outside=True)
    found = said(app, 3)
    bounds = [(each.kind, each.queue, each.limit, each.tasks) for each in found.bounds]
    assert bounds == [("no-worker", "mail", None, 1), ("full", None, "api", 1)]
    assert (found.starts, found.unchecked) == (1, ())


def test_forecast_with_unreachable_workers(app: Any, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(forecast, "consumed", asked.append)
    assert (said(app, 3).unchecked, asked) == ((), [])  # no worker is asked where no task waits
    fill(worker, 3)
    found = said(app, 3)
    assert (found.starts, len(asked)) == (1, 1)
    assert str(found).splitlines()[-1].startswith("? Which queues the workers consume")


def test_a_store_that_has_just_lost_its_data(app: Any, worker: TermsCaller, redis: Redis) -> None:
    fill(worker, 3)
    redis.hset(KEY["meta"], "settling", f"{peek(redis).now + 60_000:.0f}")
    assert said(app, 3).unchecked == ("The holders: the store has just lost its data, and workers put them back.",)


# -- keys --------------------------------------------------------------------------------------------------------------


def test_all_keys_and_one(app: Any, worker: TermsCaller) -> None:
    for key in ("a", "b"):
        for number in range(4):
            worker.arrive(f"{key}{number}", of(key))
    throttle = ThrottleControl(app)
    assert (said(app, 3, "tenant").starts, said(app, 3, "tenant", "a").starts) == (4, 2)
    assert said(app, 3, "tenant").parked == 6
    throttle.limit("tenant", key="b").override(2)
    all_started(worker)
    assert said(app, 3, "tenant").starts == 2  # an override of a key comes first
    throttle.limit("tenant").override(3)
    assert all_started(worker) == 2


def test_forecast_of_tasks_that_take_turns(app: Any, worker: TermsCaller) -> None:
    fair = Limit("fair", 1, fair_by="who")
    for number in range(6):
        cost = 2 if number == 5 else 1
        needs = terms(fair, cost=cost).needs({"keys": {}, "fair": ["bob" if number == 5 else "ana", 1]})
        worker.arrive(f"t{number}", needs)
    found = said(app, 3, "fair")
    ThrottleControl(app).limit("fair").override(3)
    assert (found.starts, found.parked) == (all_started(worker), 5)


def test_the_first_thousand_are_looked_at(app: Any, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "MOST", 3)
    fill(worker, 9)
    found = said(app, 4)
    assert (found.starts, found.looked_at, found.parked) == (2, 3, 7)
    assert "Of 7 tasks that wait, 3 in its lines were looked at." in str(found)


def test_forecast_with_unreadable_records(app: Any, worker: TermsCaller, redis: Redis) -> None:
    fill(worker, 4)
    redis.hset(KEY["records"], "t2", "{")
    assert said(app, 9).starts == 1


@pytest.mark.parametrize("permits", [0, -1, 10**9, True, "5"])
def test_no_number(app: Any, permits: Any) -> None:
    with pytest.raises(ConfigurationError, match="Limit api: permits must be a whole number from 1"):
        said(app, permits)


# -- compared with the outcome -----------------------------------------------------------------------------------------


LIMITS = [API, TENANT, Limit("third", 3)]


def arrive_by_chance(worker: TermsCaller, chance: random.Random) -> None:
    """Have some tasks of any needs arrive in any order; those start that can start without a change."""
    for number in range(chance.randrange(5, 40)):
        some = [each for each in LIMITS if chance.random() < 0.6] or [API]
        needs = terms(*some, cost=chance.choice([1, 1, 1, 2])).needs({"keys": {"tenant": chance.choice("abc")}})
        worker.arrive(f"t{number}", needs)
    all_started(worker)


#: In which lanes go to another line together, or a task is refused by two limits at once.
TELLING = (314, 436, 464, 485, 579, 771, 827, 1058, 1110, 1135, 1213, 1452)


@pytest.mark.parametrize("seed", [*range(40), *TELLING])
def test_forecast_matches_the_outcome(app: Any, worker: TermsCaller, seed: int) -> None:
    """Any tasks; then another number of any limit."""
    chance = random.Random(seed)
    arrive_by_chance(worker, chance)
    meant = chance.choice(LIMITS)
    worker.know(meant)
    key = chance.choice("abc") if meant is TENANT and chance.random() < 0.5 else None
    permits = chance.randrange(1, 12)
    found = ThrottleControl(app).limit(meant, key=key).forecast(permits)
    ThrottleControl(app).limit(meant, key=key).override(permits)
    assert found.starts == all_started(worker)


def test_forecast_text_is_one_line_for_any_names() -> None:
    told = Forecast("a\nb", None, 1, None, 0, False, 0, (Bound("x\x1by", 1),), 0, 0)
    assert str(told).splitlines() == [
        r"a\nb: 1 permit instead of any number.", "0 tasks would start at once.", r"1 task would wait on: x\x1by.",
    ]  # fmt: skip
    assert len(str(replace(told, parked=3)).splitlines()) == 4
