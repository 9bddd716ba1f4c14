"""The first tasks of many lines, with one call."""

from __future__ import annotations

from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import Needs
from celery_throttle.store.parked_tasks import read_firsts
from celery_throttle.store.scripts import execute
from tests.store.cost import commands
from tests.store.peek import KEY, pass_over, peek
from tests.store.steering import Steering
from tests.store.terms_caller import TermsCaller, terms
from tests.store.test_terms import in_turns
from tests.store.test_views import API, READS, TENANT

MANY = [Limit(f"limit-{number}", 1) for number in range(40)]


def firsts(redis: Redis, *buckets: str) -> list[str | None]:
    return [each and each.task_id for each in read_firsts(execute(redis, Steering(redis).store.firsts(buckets)))]


def of(tenant: str) -> Needs:
    return terms(TENANT).needs({"keys": {"tenant": tenant}})


def test_first_task_of_each_line(worker: TermsCaller, stranger: TermsCaller, redis: Redis) -> None:
    for number in range(4):
        (stranger, worker)[number % 2].put(f"api{number}", terms(API).same)
    for tenant in "ab":
        for number in range(3):
            worker.arrive(f"{tenant}{number}", of(tenant))
    worker.know(MANY[0])
    assert firsts(redis, "tenant\x1fb", "api", "limit-0", "tenant", "tenant\x1fa", "nope") == [
        "b1", "api0", None, None, "a1", None,
    ]  # fmt: skip
    assert firsts(redis) == []


def test_since_when_they_wait(worker: TermsCaller, redis: Redis) -> None:
    """A task that was sent back by a "slow down" goes first and keeps its time."""
    run = worker.take("back", terms(API).same)
    worker.put("early", terms(API).same, age=3600)
    worker.put("older", terms(MANY[0]).same, age=60)
    worker.send_back(run, 60)
    seconds, microseconds = redis.time()
    now = seconds + microseconds / 1_000_000
    found = read_firsts(execute(redis, Steering(redis).store.firsts(["api", "limit-0"])))
    waits = {each.task_id: now - each.since.timestamp() for each in found if each and each.since}
    assert list(waits) == ["back", "older"]
    assert -0.01 < waits["back"] < 10
    assert 60 - 0.01 < waits["older"] < 70


def test_passed_over_task_still_waits_for_longest(worker: TermsCaller, stranger: TermsCaller, redis: Redis) -> None:
    steering = Steering(redis)
    steering.say(API, "pause")
    stranger.put("left behind", terms(API).same)
    worker.put("next", terms(API).same)
    steering.unsay(API, "pause")
    pass_over(redis, "api", "q2")
    worker.look(0)
    assert peek(redis).passed
    assert firsts(redis, "api") == ["left behind"]
    worker.look(1)
    assert firsts(redis, "api", "limit-0") == ["left behind", None], "no stranger lane is there"


def test_longest_wait_of_several_lanes_is_first(worker: TermsCaller, stranger: TermsCaller, redis: Redis) -> None:
    third = TermsCaller(redis, "bbbbbbbb", "q3")
    steering = Steering(redis)
    steering.say(API, "pause")
    stranger.put("left behind", terms(API).same)
    third.put("longer", terms(API).same, age=60)
    worker.put("next", terms(API).same)
    steering.unsay(API, "pause")
    for queue in ("q3", "q2"):
        pass_over(redis, "api", queue)
        worker.look(0)
    passed = peek(redis).passed
    assert len(passed) == 2
    for lane in passed:  # the lane that is in turn is first again
        redis.zincrby(KEY["due"], 60_000, f"lane:{lane}")
        assert firsts(redis, "api") == ["longer"]
    worker.put("longest", terms(API).same, age=90)
    assert firsts(redis, "api") == ["longest"]


def test_next_lane_in_turn_is_first(worker: TermsCaller, redis: Redis) -> None:
    needs = in_turns(Limit("fair", 1, fair_by="who"))
    held = worker.arrive("x", needs["a"])
    for number in range(6):
        worker.arrive(f"a{number}", needs["a"])
    worker.arrive("b0", needs["b"])
    assert held
    for _ in range(7):
        (first,) = firsts(redis, "fair")
        (held,) = worker.release(held, slots=1).grants  # type: ignore[assignment]
        assert held.task == first
    assert firsts(redis, "fair") == [None]


def test_firsts_writes_nothing_and_costs_the_same_for_any_lines(
    worker: TermsCaller, stranger: TermsCaller, redis: Redis
) -> None:
    call = Steering(redis).store.firsts([limit.name for limit in MANY])
    costs = []
    for limit in MANY:
        worker.take(f"{limit.name} runs", terms(limit).same)
    for batch in range(2):
        for limit in MANY[:20]:
            for number in range(10):
                (worker, stranger)[number % 2].put(f"{limit.name} {batch} {number}", terms(limit).same)
        redis.hset(KEY["meta"], "settling", "1")  # over, and not cleared by readers
        execute(redis, call)
        with commands(redis) as made:
            execute(redis, call)
        assert made.keys() <= READS
        assert made["evalsha"] == 1
        costs.append(sum(made.values()))
    assert costs[0] == costs[1] <= 2 * len(MANY) + 10
