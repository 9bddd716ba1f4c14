"""Several limits, rates, turns and deadlines: what no story of test_limit_stories.py has, such as many tasks."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter

import pytest
from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import Needs
from celery_throttle.store.exchange import Arrival
from celery_throttle.store.exchange_reply import Grant
from tests.primitives.faults import StoreClock
from tests.store.caller import started
from tests.store.peek import KEY, change, peek
from tests.store.terms_caller import TermsCaller, terms, used
from tests.support.waiting import until

SECOND = 1_000_000


# -- several -----------------------------------------------------------------------------------------------------------


def test_a_task_between_two_limits_runs_at_last(worker: TermsCaller, redis: Redis) -> None:
    """Others keep either limit busy, and never leave both free at once."""
    sides = [Limit("left", 1), Limit("right", 1)]
    running: dict[str, Arrival | Grant] = {}
    for limit in sides:
        held = worker.arrive(f"{limit.name}0", terms(limit).same)
        assert held
        running[limit.name] = held
    assert not worker.arrive("both", terms(*sides).same)
    ran: tuple[str, ...] = ()
    for turn in range(100):
        limit = sides[turn % 2]
        worker.put(f"{limit.name} {turn}", terms(limit).same)
        if limit.name in running:
            reply = worker.release(running.pop(limit.name), slots=1)
            ran = started(reply)
            if "both" in ran:
                break
            running.update({grant.needs.partition(":")[2]: grant for grant in reply.grants})
    assert ran == ("both",)
    assert used(redis) == {"left": 1, "right": 1}
    assert not peek(redis).hashes["overrides"], "and bars no task any more"


# -- rates -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "burst", "cost"), [("100/s", 1, 1), ("200/s", 5, 1), ("300/s", 4, 2)])
def test_no_window_has_more_starts_than_the_rate_allows(redis: Redis, rate: str, burst: int, cost: int) -> None:
    """A task may start late, and that does not delay the following starts: no window has too many."""
    callers = [TermsCaller(redis, name, "q") for name in ("aaaaaaaa", "bbbbbbbb")]
    mail = terms(Limit("mail", rate=rate, burst=burst), cost=cost)
    for number in range(120 // cost):
        callers[0].put(f"m{number}", mail.same)
    spacing = 1 / int(rate.partition("/")[0])
    granted: list[tuple[float, float]] = []  # not before, not after

    def run() -> bool:
        for caller in callers:
            before = time.monotonic()
            grants = caller.look(9).grants
            granted.extend((before, time.monotonic()) for _ in grants)
        return len(granted) == 120 // cost

    until(run, every=0.003)
    for place, (before, _) in enumerate(granted):
        for count, (_, after) in enumerate(granted[place:], 1):
            # The possible lateness of the first one that counts, and the difference between two process clocks.
            assert cost * count * spacing <= after - before + (burst + 1) * spacing + 0.001


# -- turns -------------------------------------------------------------------------------------------------------------


def in_turns(limit: Limit) -> dict[str, Needs]:
    each = terms(limit)
    return {who: each.needs({"fair": [who, limit.step(who)]}) for who in ("a", "b", "c")}


def serve(worker: TermsCaller, run: Arrival | Grant, count: int) -> str:
    """Run one task after the other; return the tasks that ran, by the letter of their key."""
    order = ""
    for _ in range(count):
        (run,) = worker.release(run, slots=1).grants
        order += run.task[0]
    return order


@pytest.mark.parametrize(
    ("weights", "ran"),
    [
        pytest.param({"a": 3}, {"a": 6, "b": 2}, id="three times"),
        # A place in line has 16 digits.
        pytest.param(
            dict(zip("abcdefghi", (97, 89, 83, 79, 73, 71, 67, 61, 59), strict=True)),
            {"a": 11, "b": 10, "c": 9},
            id="without a small common multiple",
        ),
    ],
)
def test_a_heavier_key_has_more_turns(worker: TermsCaller, weights: dict[str, int], ran: dict[str, int]) -> None:
    needs = in_turns(Limit("api", 1, fair_by="who", weights=weights))
    held = worker.take("x", needs["c"])
    for number in range(20):
        for who in ran:
            worker.arrive(f"{who}{number}", needs[who])
    order = serve(worker, held, sum(ran.values()))
    assert Counter(order) == ran


def test_turns_that_have_gone_far(worker: TermsCaller, redis: Redis) -> None:
    """A place has 16 digits, of which a record keeps 14: where they differ no script would find the task."""
    needs = in_turns(Limit("api", 1, fair_by="who", weights={"a": 3}))
    held = worker.take("x", needs["c"])
    redis.hset(KEY["turns"], "api", 3_000_000_000_000_007)
    for number in range(6):
        for who in "ab":
            worker.arrive(f"{who}{number}", needs[who])
    assert Counter(serve(worker, held, 12)) == {"a": 6, "b": 6}


# -- as long as may be, as many as may be ------------------------------------------------------------------------------


def test_tasks_past_their_deadline_do_not_start(worker: TermsCaller, redis: Redis, clock: StoreClock) -> None:
    """However many there are, and however little of them a call clears."""
    gpu = Limit("gpu", 1)
    held = worker.arrive("g", terms(gpu).same)
    assert held
    for number in range(100):
        worker.put(f"late{number}", terms(gpu, start_deadline=0.001).same)
    worker.put("in time", terms(gpu, start_deadline=600.0).same)
    worker.put("later", terms(gpu).same)
    clock.move(2_000)
    reply = worker.release(held, slots=200)
    grants = [*reply.grants]
    while reply.more:
        reply = worker.look(200)
        assert reply.grants
        grants += reply.grants
    assert [grant.task for grant in grants if not grant.expired] == ["in time"]
    assert len([grant for grant in grants if grant.expired]) == 100
    assert used(redis) == {"gpu": 1}


def test_a_clock_that_is_set_back_stops_no_rate(worker: TermsCaller, redis: Redis) -> None:
    """The clock was an hour ahead until now: a parked task still comes nearer to its start."""
    pace = terms(Limit("pace", rate="20/s")).same
    assert worker.arrive("p1", pace)
    kept = json.loads(redis.hget(KEY["rates"], "pace") or "")
    hour = 3_600_000_000
    (name,) = (name for name in kept if "/" in name)
    us, parts = kept[name].split(" ")[:2]
    change(redis, "rates", "pace", **{"seen": str(int(kept["seen"]) + hour), name: f"{int(us) + hour} {parts}"})
    redis.zadd(KEY["ends"], {"rates:pace": 9e12})
    worker.put("p2", pace)
    until(lambda: started(worker.look(1)) == ("p2",))


def test_rates_of_many_keys_clear_each_other(worker: TermsCaller, redis: Redis, clock: StoreClock) -> None:
    """Where no beat runs."""
    mail = terms(Limit("mail", rate="1/s", key="who"))
    numbers = itertools.count()

    def come() -> None:
        number = next(numbers)
        assert worker.arrive(f"m{number}", mail.needs({"keys": {"mail": str(number)}}))

    for _ in range(20):
        come()

    clock.move(2 * SECOND)
    for _ in range(5):
        come()
    assert redis.hlen(KEY["rates"]) == 5
