"""The longest wait of each limit, however many keys and lines there are."""

from __future__ import annotations

import random

from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import Needs
from celery_throttle.store.parked_tasks import read_firsts, read_oldest
from celery_throttle.store.scripts import execute
from tests.store.cost import commands
from tests.store.peek import check, pass_over, peek
from tests.store.steering import Steering
from tests.store.terms_caller import TermsCaller, terms
from tests.store.test_terms import in_turns
from tests.store.test_views import API, READS, TENANT

OTHER = Limit("tenant-2", 1)


def of(tenant: str) -> Needs:
    return terms(TENANT).needs({"keys": {"tenant": tenant}})


def oldest(redis: Redis, *limits: str) -> list[tuple[str, str] | None]:
    """Return the line in which the oldest parked task of each limit is, and that task."""
    found = read_oldest(execute(redis, Steering(redis).store.oldest(limits)))
    return [each and (each.bucket.text, each.first.task_id) for each in found]


def test_the_oldest_task_of_all_keys_is_found(worker: TermsCaller, redis: Redis) -> None:
    for number in range(30):
        worker.put(f"t{number}", of(f"k{number}"), age=number % 17)
        worker.put(f"u{number}", of(f"k{number}"))
    worker.put("plain", terms(API).same)
    worker.put("neighbour", terms(OTHER).same, age=3600)
    assert oldest(redis, "tenant", "api", "tenant-2", "tenan", "nope") == [
        ("tenant\x1fk16", "t16"), ("api", "plain"), ("tenant-2", "neighbour"), None, None,
    ]  # fmt: skip
    assert oldest(redis) == []


def test_since_when_it_waits(worker: TermsCaller, redis: Redis) -> None:
    worker.put("early", of("a"), age=3600)
    (found,) = read_oldest(execute(redis, Steering(redis).store.oldest(["tenant"])))
    assert found
    assert found.first.since
    assert 3599 <= redis.time()[0] - found.first.since.timestamp() < 3610


def test_the_next_one_follows_when_it_starts_or_is_dropped(worker: TermsCaller, redis: Redis) -> None:
    for number, tenant in enumerate("abc"):
        worker.put(f"{tenant}0", of(tenant), age=100 - number)
        worker.put(f"{tenant}1", of(tenant), age=50 - number)
    steering = Steering(redis)
    steering.say("tenant", "pause")
    execute(redis, steering.store.drop("", "ana", "", "", ["a0"]))
    worker.look(1)  # the caller that dropped it gets the outcome, and it is gone
    assert oldest(redis, "tenant") == [("tenant\x1fb", "b0")]
    steering.unsay("tenant", "pause")
    assert [each.task for each in worker.look(3).grants] == ["b0", "c0", "a1"]
    assert oldest(redis, "tenant") == [("tenant\x1fb", "b1")]
    check(peek(redis))


def test_a_task_that_is_passed_over_still_waits_for_longest(
    worker: TermsCaller, stranger: TermsCaller, redis: Redis
) -> None:
    steering = Steering(redis)
    steering.say(API, "pause")
    stranger.put("left behind", terms(API).same)
    worker.put("next", terms(API).same)
    steering.unsay(API, "pause")
    pass_over(redis, "api", "q2")
    worker.look(0)
    assert peek(redis).passed
    assert oldest(redis, "api") == [("api", "left behind")]
    stranger.look(1)
    assert oldest(redis, "api") == [("api", "next")]


def test_where_tasks_take_turns_the_wait_counts_not_the_turn(
    worker: TermsCaller, stranger: TermsCaller, redis: Redis
) -> None:
    needs = in_turns(Limit("fair", 1, fair_by="who"))
    run = worker.take("a", needs["a"])
    for number in range(5):
        worker.arrive(f"a{number}", needs["a"])
    worker.release(run, slots=1)
    stranger.arrive("b", needs["b"])
    (turn,) = read_firsts(execute(redis, Steering(redis).store.firsts(["fair"])))
    assert turn
    assert turn.task_id == "b"
    assert oldest(redis, "fair") == [("fair", "a1")]


def test_oldest_agrees_with_the_records_after_any_call(worker: TermsCaller, redis: Redis) -> None:
    chance = random.Random(7)
    for number in range(60):
        worker.put(f"t{number}", of(f"k{chance.randrange(8)}"), age=chance.randrange(1000))
        if chance.random() < 0.3:
            worker.look(1)
        store = peek(redis)
        parked = store.parked
        first = min(parked, key=lambda task: parked[task].ticket, default=None)
        (found,) = oldest(redis, "tenant")
        assert (found and found[1]) == first
        check(store)


def test_oldest_writes_nothing_and_costs_the_same_with_more_keys(worker: TermsCaller, redis: Redis) -> None:
    call, costs = Steering(redis).store.oldest(["tenant", "api"]), []
    worker.put("first", of("first"), age=60)
    for batch in range(2):
        for number in range(50):
            worker.put(f"{batch} {number}", of(f"{batch} {number}"))
        execute(redis, call)
        with commands(redis) as made:
            execute(redis, call)
        assert made.keys() <= READS
        costs.append(sum(made.values()))
    assert costs[0] == costs[1] <= 6
