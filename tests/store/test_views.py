"""Reading the store: holders, parked tasks, reasons for waits, and the cost of reading."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

import pytest
from kombu.message import Message
from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import Needs
from celery_throttle.store.calls import MOST_ASKED
from celery_throttle.store.holders import Holder, read_holders
from celery_throttle.store.limit_status import RateStatus, read_statuses
from celery_throttle.store.needs import Need
from celery_throttle.store.parcel import pack
from celery_throttle.store.scripts import execute
from celery_throttle.store.workers import read_services
from tests.store.caller import Caller
from tests.store.cost import commands, cost_of_reading
from tests.store.peek import KEY, expire, peek
from tests.store.steering import Steering
from tests.store.terms_caller import TermsCaller, terms

API, TENANT = Limit("api", 2), Limit("tenant", 1, key="tenant")
ONE, BOTH = terms(API).same, terms(API, TENANT)


def of(tenant: str) -> Needs:
    return BOTH.needs({"keys": {"tenant": tenant}})


def fill(worker: TermsCaller, needs: Needs, count: int, name: str = "t") -> None:
    for number in range(count):
        worker.arrive(f"{name}{number}", needs)


def buckets(steering: Steering, source: Any) -> set[str]:
    found: set[str] = set()
    after, pages = "", 0
    while pages == 0 or after:
        following, names = steering.ask(steering.store.limits(source, after))
        found |= {name.decode() for name in names}
        after, pages = following.decode(), pages + 1
    return found


def holders(steering: Steering) -> list[Holder]:
    found: list[Holder] = []
    past, more = 0, True
    while more:
        page, more = read_holders(steering.ask(steering.store.holders(past, 3)))
        found += page
        past += 3
    return found


# -- limits ------------------------------------------------------------------------------------------------------------


def test_how_a_limit_stands(worker: TermsCaller, steering: Steering) -> None:
    limit = Limit("mail", 3, rate=["10/m", "500/h"], burst=[1, 50], max_parked=7)
    fill(worker, terms(limit).same, 2)
    stands = steering.stands(limit)
    assert (stands.name, stands.key, str(stands.bucket)) == ("mail", None, "mail")
    assert (stands.permits, stands.in_force, stands.max_parked) == (3, 3, 7)
    assert stands.rates == (RateStatus("10/m", 1), RateStatus("500/h", 50))
    assert (stands.held, stands.parked, stands.declared) == (1, 1, True)
    assert 0 < stands.next_start_in <= 6
    assert str(stands).startswith("mail 1/3, 1 parked (at most 7), rate 10/m, rate 500/h (burst 50), next start in ")
    assert {stands.override, stands.paused, stands.disabled, stands.held_back} == {None}
    assert {stands.stopped, stands.full} == {False}


def test_overrides_have_author_time_and_reason(worker: TermsCaller, steering: Steering) -> None:
    fill(worker, ONE, 2)
    before = time.time()
    steering.say(API, "override", 5, until="+60000", why="big day")
    steering.say(API, "pause", why="ünïcode \0 ' \"")
    stands = steering.stands(API)
    assert (stands.permits, stands.in_force) == (2, 5)
    said = stands.override
    assert said
    assert (said.limit, said.by, said.why, said.permits) == ("api", "ana@desk", "big day", 5)
    assert said.until
    assert abs(said.since.timestamp() - before) < 5
    assert (said.until - said.since).total_seconds() == 60
    assert stands.paused
    assert (stands.paused.why, stands.paused.until) == ("ünïcode \0 ' \"", None)
    assert stands.stopped
    assert not stands.full


def test_override_of_a_key_comes_before_that_of_all(worker: TermsCaller, steering: Steering) -> None:
    worker.arrive("t", of("a"))
    steering.say("tenant", "pause", why="all")
    one, other = steering.stands("tenant\x1fa"), steering.stands("tenant\x1fb")
    assert one.paused == other.paused
    steering.say("tenant\x1fa", "pause", why="this one")
    one = steering.stands("tenant\x1fa")
    assert (str(one.bucket), one.key, one.permits, one.held) == ("tenant[a]", "a", 1, 1)
    assert one.paused
    assert (one.paused.limit, one.paused.why) == ("tenant[a]", "this one")


def test_a_limit_without_a_number(worker: TermsCaller, steering: Steering) -> None:
    fill(worker, terms(Limit("mail", rate="1/h")).same, 2)
    stands = steering.stands("mail")
    assert (stands.permits, stands.in_force) == (None, None)
    assert stands.next_start_in > 3000
    steering.say(API, "disable")
    assert steering.stands(API).in_force is None
    unknown = steering.stands("nobody")
    assert (unknown.declared, unknown.permits, unknown.in_force) == (False, None, 0)


def test_all_limits_and_keys_are_found(worker: TermsCaller, steering: Steering) -> None:
    keys = [f"{number:04}" for number in range(600)]
    for key in keys:
        worker.put(f"t{key}", terms(TENANT).needs({"keys": {"tenant": key}}))
    assert worker.arrive("held", terms(TENANT).needs({"keys": {"tenant": "held"}}))
    steering.say("tenant\x1fsaid", "pause")
    assert buckets(steering, "limits") == {"tenant"}
    assert buckets(steering, "overrides") == {"tenant\x1fsaid"}
    assert buckets(steering, "waiting") == {f"tenant\x1f{key}" for key in keys}
    assert buckets(steering, "used") == {"tenant\x1fheld"}
    while worker.look(1000).grants:
        pass
    assert len(buckets(steering, "used")) == 601


# -- holders and waiting tasks -----------------------------------------------------------------------------------------


def test_holders(worker: TermsCaller, steering: Steering, redis: Redis) -> None:
    big = terms(Limit("gpu", 4), cost=3).same
    for number in range(2):
        worker.arrive(f"t{number}", ONE)
    worker.arrive("big", big)
    fill(worker, of("a"), 2, "waits")
    worker.put("resumed", terms(Limit("other", 1)).same, slots=1)
    expire(redis, "t1")
    found = {each.task_id: each for each in holders(steering)}
    assert found.keys() == {"t0", "t1", "big", "resumed"}
    assert found["t0"].needs == (Need("api", None, 1),)
    assert found["big"].needs == (Need("gpu", None, 3),)
    assert found["t1"].lease_left < 0 < found["t0"].lease_left <= 600
    assert (found["t0"].queue, found["resumed"].queue) == ("q", "q")
    assert {each.worker for each in found.values()} == {"aaaaaaaa"}


def test_waiting_tasks_have_their_place(worker: TermsCaller, stranger: TermsCaller, steering: Steering) -> None:
    steering.say(API, "pause")
    for number in range(4):
        (worker, stranger)[number % 2].put(f"t{number}", ONE)
    found = steering.parked("api")
    assert [(each.task_id, each.place, each.queue) for each in found] == [
        ("t0", 1, "q"), ("t1", 2, "q2"), ("t2", 3, "q"), ("t3", 4, "q2"),
    ]  # fmt: skip
    assert [each.task_id for each in steering.parked("api", 3)] == ["t0", "t1", "t2"]
    assert {(each.limit, each.key, each.deliveries) for each in found} == {("api", None, 0)}
    assert steering.parked("ap") == ()


def test_since_when_they_wait(worker: TermsCaller, steering: Steering, redis: Redis) -> None:
    """A task that was sent back by a "slow down" goes first and keeps its time."""
    run = worker.take("back", ONE)
    worker.put("early", ONE, age=3600)
    worker.send_back(run, 60)
    now = peek(redis).now / 1000
    waits = {each.task_id: now - each.since.timestamp() for each in steering.parked("api") if each.since}
    assert list(waits) == ["back", "early"]
    # The clock was read in whole ms.
    assert -0.01 < waits["back"] < 10
    assert 3600 - 0.01 < waits["early"] < 3610


@pytest.mark.parametrize("ticket", ['"x"', "1e300", "null"])
def test_since_when_is_not_readable(worker: TermsCaller, steering: Steering, redis: Redis, ticket: str) -> None:
    worker.put("t", ONE)
    redis.hset(KEY["records"], "t", f'{{"ticket":{ticket}}}')
    assert [each.since for each in steering.parked("api")] == [None]


def test_waiting_tasks_of_any_key(worker: TermsCaller, steering: Steering) -> None:
    keyed = terms(TENANT)
    for tenant in "ab":
        fill(worker, keyed.needs({"keys": {"tenant": tenant}}), 3, tenant)
    worker.put("other", terms(Limit("tenant2", 1)).same)
    assert [(each.key, each.task_id, each.place) for each in steering.parked("tenant")] == [
        ("a", "a1", 1), ("a", "a2", 2), ("b", "b1", 1), ("b", "b2", 2),
    ]  # fmt: skip
    assert [each.task_id for each in steering.parked("tenant\x1fb")] == ["b1", "b2"]
    assert len(steering.parked()) == 5
    assert len(steering.parked(most=3)) == 3


@pytest.mark.parametrize(
    ("headers", "body", "name"),
    [
        ({"task": "shop.render"}, "[[], {}, {}]", "shop.render"),
        ({"task": "shop.render"}, "x" * 100_000, "shop.render"),
        ({"task": "shop.render"}, "x" * 1_100_000, None),
        ({"task": "shop.render", "more": hashlib.shake_128().hexdigest(20_000)}, "", None),
        ({}, "", None),
        ({"task": 7}, "", None),
    ],
)
def test_the_name_of_a_task_is_in_its_message(
    headers: dict[str, Any], body: str, name: str | None, worker: TermsCaller, steering: Steering
) -> None:
    message = pack(Message(body, headers=headers, properties={}, content_type="application/json"))
    steering.say(API, "pause")
    worker.put("t", ONE, message=message)
    assert [each.task_name for each in steering.parked()] == [name]
    assert steering.explain("t").task_name == name


# -- why ---------------------------------------------------------------------------------------------------------------


def test_the_outside_is_why(worker: TermsCaller, steering: Steering, redis: Redis) -> None:
    redis.hset(KEY["overrides"], "api", json.dumps({"hold": [0, 9e12, "t7", "rate limited", 1.5e12]}))
    redis.zadd(KEY["ends"], {"overrides:api": 9e12})
    fill(worker, ONE, 1)
    (why,) = steering.explain("t0").reasons
    assert why.startswith("Limit api is held back since 2017-07-14 02:40:00 UTC until 2255-")
    assert why.endswith(" UTC by t7, because: rate limited.")
    assert steering.stands(API).stopped


# -- costs -------------------------------------------------------------------------------------------------------------


def test_reading_writes_nothing_and_costs_the_same_for_any_line(
    worker: TermsCaller, stranger: TermsCaller, steering: Steering, redis: Redis
) -> None:
    steering.say("tenant\x1fa", "override", 1)
    fill(worker, of("a"), 2)
    store, costs = steering.store, []
    calls = [
        store.limits("limits", ""), store.limits("used", ""), store.limits("waiting", ""),
        store.status(["api", "tenant", "tenant\x1fa"]), store.holders(0, 10), store.parked("tenant", 10),
        store.parked(None, 10), store.explain("t1"), store.explain("t0"),
    ]  # fmt: skip
    for batch in range(2):
        for number in range(100):
            (worker, stranger)[number % 2].put(f"more{batch} {number}", of("a"))
        redis.hset(KEY["meta"], "settling", "1")  # over, and not cleared by readers
        costs.append(cost_of_reading(redis, *calls))
    assert costs[0] == costs[1]


def test_limit_without_keys_and_overrides_takes_five_commands(
    worker: TermsCaller, steering: Steering, redis: Redis
) -> None:
    names = [f"limit-{number}" for number in range(60)]
    worker.declare(*(Limit(name, 1) for name in names))
    costs = []
    for most in (0, 10, 60):
        call = steering.store.status(names[:most])
        execute(redis, call)
        with commands(redis) as made:
            assert [each.name for each in read_statuses(execute(redis, call))] == names[:most]
        costs.append(sum(made.values()))
    assert costs[2] - costs[1] <= 50 * 5


def test_a_worker_is_one_of_the_broker_that_its_queues_name(redis: Redis, one: Limit) -> None:
    redis.hset(KEY["meta"], "broker:0badcafe", "redis://shop")
    redis.zadd(KEY["ends"], {"meta:broker:0badcafe": 9e12})
    worker = Caller(redis, "aaaaaaaa", "0badcafe:q")
    worker.take("t", one)
    (service,) = read_services(execute(redis, worker.store.services()))
    assert (service.broker, service.workers) == ("redis://shop", 1)


def test_known_tasks_are_found_among_thousands(worker: TermsCaller, steering: Steering) -> None:
    worker.take("holds", ONE)
    worker.take("holds too", ONE)
    worker.put("parked", ONE)
    tasks = [*(f"t{number}" for number in range(MOST_ASKED - 3)), "holds", "parked", "nope"]
    assert steering.ask(steering.store.known(tasks)) == [int(task in ("holds", "parked")) for task in tasks]
