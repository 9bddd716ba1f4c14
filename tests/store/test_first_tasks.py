"""The first task of each line, and the task of each limit that waits for longest: many with one call."""

from __future__ import annotations

import random
from datetime import datetime

from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import Needs
from celery_throttle.store.parked_tasks import First, Oldest, read_firsts, read_oldest
from tests.store.cost import cost_of_reading
from tests.store.peek import KEY, check, pass_over, peek
from tests.store.steering import Steering
from tests.store.stories import Story
from tests.store.terms_caller import TermsCaller, terms

API, TENANT, OTHER = Limit("api", 2), Limit("tenant", 1, key="tenant"), Limit("tenant-2", 1)
ONE = terms(API).same
MANY = [Limit(f"limit-{number}", 1) for number in range(40)]


def of(tenant: str) -> Needs:
    return terms(TENANT).needs({"keys": {"tenant": tenant}})


def read_first(steering: Steering, *buckets: str) -> list[First | None]:
    return read_firsts(steering.ask(steering.store.firsts(buckets)))


def read_longest(steering: Steering, *limits: str) -> list[Oldest | None]:
    return read_oldest(steering.ask(steering.store.oldest(limits)))


def firsts(steering: Steering, *buckets: str) -> list[str | None]:
    return [each and each.task_id for each in read_first(steering, *buckets)]


def oldest(steering: Steering, *limits: str) -> list[tuple[str, str] | None]:
    """Return the line in which the oldest parked task of each limit is, and that task."""
    return [each and (each.bucket.text, each.first.task_id) for each in read_longest(steering, *limits)]


def test_the_oldest_task_of_all_keys_is_found(worker: TermsCaller, steering: Steering) -> None:
    for number in range(30):
        worker.put(f"t{number}", of(f"k{number}"), age=number % 17)
        worker.put(f"u{number}", of(f"k{number}"))
    worker.put("plain", ONE)
    worker.put("neighbour", terms(OTHER).same, age=3600)
    assert oldest(steering, "tenant", "api", "tenant-2", "tenan", "nope") == [
        ("tenant\x1fk16", "t16"), ("api", "plain"), ("tenant-2", "neighbour"), None, None,
    ]  # fmt: skip
    assert oldest(steering) == []


def test_since_when_they_wait(worker: TermsCaller, steering: Steering, redis: Redis) -> None:
    """A task that was sent back by a "slow down" goes first and keeps its time."""
    run = worker.take("back", ONE)
    worker.put("early", ONE, age=3600)
    worker.put("older", terms(MANY[0]).same, age=60)
    worker.send_back(run, 60)
    seconds, microseconds = redis.time()

    def wait(since: datetime | None) -> float:
        assert since
        return seconds + microseconds / 1_000_000 - since.timestamp()

    waits = {each.task_id: wait(each.since) for each in read_first(steering, "api", "limit-0") if each}
    assert list(waits) == ["back", "older"]
    assert -0.01 < waits["back"] < 10
    assert 60 - 0.01 < waits["older"] < 70
    (longest,) = read_longest(steering, "limit-0")
    assert longest
    assert wait(longest.first.since) == waits["older"]


def test_longest_wait_of_several_lanes_is_first(
    worker: TermsCaller, stranger: TermsCaller, steering: Steering, redis: Redis
) -> None:
    third = TermsCaller(redis, "bbbbbbbb", "q3")
    steering.say(API, "pause")
    stranger.put("left behind", ONE)
    third.put("longer", ONE, age=60)
    worker.put("next", ONE)
    steering.unsay(API, "pause")
    for queue in ("q3", "q2"):
        pass_over(redis, "api", queue)
        worker.look(0)
    passed = peek(redis).passed
    assert len(passed) == 2
    for lane in passed:  # the lane that is in turn is first again
        redis.zincrby(KEY["due"], 60_000, f"lane:{lane}")
        assert firsts(steering, "api") == ["longer"]
    worker.put("longest", ONE, age=90)
    assert firsts(steering, "api") == ["longest"]


def test_next_lane_in_turn_is_first(story: Story) -> None:
    story.tell("take x on=fair~a; park a0 a1 a2 a3 a4 a5 on=fair~a; park b0 on=fair~b")
    runs = "x"
    for _ in range(7):
        first = story.firsts("fair")
        story.tell(f"end {runs} slots=1 = {first}")
        runs = first
    assert story.firsts("fair") == "None"


def test_oldest_agrees_with_the_records_after_any_call(worker: TermsCaller, steering: Steering, redis: Redis) -> None:
    chance = random.Random(7)
    for number in range(60):
        worker.put(f"t{number}", of(f"k{chance.randrange(8)}"), age=chance.randrange(1000))
        if chance.random() < 0.3:
            worker.look(1)
        store = peek(redis)
        parked = store.parked
        first = min(parked, key=lambda task: parked[task].ticket, default=None)
        (found,) = oldest(steering, "tenant")
        assert (found and found[1]) == first
        check(store)


def test_firsts_writes_nothing_and_costs_the_same_for_any_lines(
    worker: TermsCaller, stranger: TermsCaller, steering: Steering, redis: Redis
) -> None:
    call, costs = steering.store.firsts([limit.name for limit in MANY]), []
    for limit in MANY:
        worker.take(f"{limit.name} runs", terms(limit).same)
    for batch in range(2):
        for limit in MANY[:20]:
            for number in range(10):
                (worker, stranger)[number % 2].put(f"{limit.name} {batch} {number}", terms(limit).same)
        redis.hset(KEY["meta"], "settling", "1")  # over, and not cleared by readers
        costs.append(cost_of_reading(redis, call))
    assert costs[0] == costs[1] <= 2 * len(MANY) + 10


def test_oldest_writes_nothing_and_costs_the_same_with_more_keys(
    worker: TermsCaller, steering: Steering, redis: Redis
) -> None:
    call, costs = steering.store.oldest(["tenant", "api"]), []
    worker.put("first", of("first"), age=60)
    for batch in range(2):
        for number in range(50):
            worker.put(f"{batch} {number}", of(f"{batch} {number}"))
        costs.append(cost_of_reading(redis, call))
    assert costs[0] == costs[1] <= 6


def test_a_place_that_names_no_task_is_skipped(worker: TermsCaller, redis: Redis, steering: Steering) -> None:
    for task in ("t1", "t2", "t3"):
        worker.arrive(task, ONE)
    (lane,) = peek(redis).lanes
    redis.zadd(KEY["lines"], {f"{lane}\0-": 0})
    assert firsts(steering, "api") == ["t3"]
    redis.zrem(KEY["lines"], f"{lane}\0-")
