"""Limits by key, several at once, rates, costs, turns: how the scripts treat them."""

from __future__ import annotations

import itertools
import json
import re
import time

import pytest
from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import Needs
from celery_throttle.store.exchange import Arrival
from celery_throttle.store.exchange_reply import Answer, Grant
from tests.primitives.faults import StoreClock
from tests.store.caller import started
from tests.store.lock_caller import plan_of
from tests.store.peek import KEY, change, lapse, peek
from tests.store.terms_caller import TermsCaller, lines, terms, used
from tests.support.waiting import until

SECOND = 1_000_000
API, TENANT = Limit("api", 3), Limit("tenant", 2, key="tenant")
BOTH = terms(API, TENANT)


def of(tenant: str) -> Needs:
    """Return the permits of both limits that a task of this tenant needs."""
    return BOTH.needs({"keys": {"tenant": tenant}})


# -- several -----------------------------------------------------------------------------------------------------------


def test_a_line_does_not_go_to_a_full_limit_as_a_whole(worker: TermsCaller, redis: Redis) -> None:
    a = [worker.arrive(f"a{number}", of("a")) for number in range(10)]
    assert worker.arrive("c1", terms(API).same)
    assert a[0]
    # The shared limit is full again at once, so the returned permit of the tenant is for one more at the most.
    worker.put("c2", terms(API).same)
    worker.end(a[0], slots=0)
    worker.look(1)
    assert len(lines(redis)["tenant/a"]) >= 7


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


def test_task_that_waits_for_its_lock_bars_no_other(worker: TermsCaller, redis: Redis) -> None:
    left, right = (Limit(name, 1) for name in ("left", "right"))
    sides = [worker.arrive(limit.name, terms(limit).same) for limit in (left, right)]
    assert sides[0]
    assert sides[1]
    worker.put("elder", terms(left, right).same, lock=plan_of().spec)
    change(redis, "records", "elder", moves=7)
    worker.end(sides[0], slots=1)  # it waits for the right side now, and bars both
    lapse(redis, "locks:same")
    worker.exchange(asked=[worker.arrival("other", None, lock=plan_of().spec)])
    worker.put("younger", terms(left).same)
    assert worker.end(sides[1], slots=2) == ("younger",)
    assert peek(redis).records["elder"].verdict == "follow"


# -- rates -------------------------------------------------------------------------------------------------------------


def test_several_rates_and_a_rate_for_each_key(worker: TermsCaller, clock: StoreClock) -> None:
    mail = terms(Limit("mail", rate=["1/s", "1/d"], burst=[1, 2], key="who"))
    a, b = mail.needs({"keys": {"mail": "a"}}), mail.needs({"keys": {"mail": "b"}})
    assert worker.arrive("a1", a)
    assert worker.arrive("b1", b)
    assert not worker.arrive("a2", a)
    clock.move(SECOND)
    assert started(worker.look(9)) == ("a2",)
    assert not worker.arrive("a3", a)
    assert worker.look(9).wait > 10, "the day's rate is used up"


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


def serve(worker: TermsCaller, run: Arrival | Grant, count: int) -> tuple[str, Arrival | Grant]:
    """Run one task after the other; return the tasks that ran, by the letter of their key, and the running ones."""
    order = ""
    for _ in range(count):
        (run,) = worker.release(run, slots=1).grants
        order += run.task[0]
    return order, run


def test_a_newer_attempt_of_a_task_before_all_others_takes_no_turn(worker: TermsCaller, redis: Redis) -> None:
    """A service asked to slow down, so the task went before all others; now a retry of it comes in its place."""
    needs = in_turns(Limit("api", 1, fair_by="who"))
    held = worker.arrive("t", needs["a"])
    assert held
    worker.send_back(held, 0.0, "")
    worker.put("b", needs["b"])
    worker.put("t", needs["a"], attempt=1)
    (first,) = worker.look().grants
    assert (first.task, first.attempt) == ("t", 1)
    assert worker.end(first, slots=1) == ("b",)
    assert all(float(place) > 0 for place in peek(redis).hashes["turns"].values())


def test_a_heavier_key_has_more_turns(worker: TermsCaller) -> None:
    needs = in_turns(Limit("api", 1, fair_by="who", weights={"a": 3}))
    held = worker.arrive("x", needs["c"])
    assert held
    for number in range(9):
        worker.arrive(f"a{number}", needs["a"])
        worker.arrive(f"b{number}", needs["b"])
    order, _ = serve(worker, held, 8)
    assert order.count("a") == 6


def test_weights_without_a_small_common_multiple(worker: TermsCaller) -> None:
    """A place in line has 16 digits."""
    weights = dict(zip("abcdefghi", (97, 89, 83, 79, 73, 71, 67, 61, 59), strict=True))
    needs = in_turns(Limit("api", 1, fair_by="who", weights=weights))
    held = worker.arrive("x", needs["c"])
    assert held
    for number in range(20):
        for who in "abc":
            worker.arrive(f"{who}{number}", needs[who])
    order, _ = serve(worker, held, 30)
    assert {who: order.count(who) for who in "abc"} == {"a": 11, "b": 10, "c": 9}


def test_turns_that_have_gone_far(worker: TermsCaller, redis: Redis) -> None:
    """A place has 16 digits, of which a record keeps 14: where they differ no script would find the task."""
    needs = in_turns(Limit("api", 1, fair_by="who", weights={"a": 3}))
    held = worker.arrive("x", needs["c"])
    assert held
    redis.hset(KEY["turns"], "api", 3_000_000_000_000_007)
    for number in range(6):
        for who in "ab":
            worker.arrive(f"{who}{number}", needs[who])
    order, _ = serve(worker, held, 12)
    assert sorted(order) == [*"aaaaaabbbbbb"]


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


def test_replay_returns_the_same_refusals(worker: TermsCaller, redis: Redis) -> None:
    gpu = terms(Limit("gpu", 1, max_parked=1)).same
    worker.arrive("g1", gpu)
    worker.arrive("g2", gpu)
    parcels = [worker.parcel(task, gpu) for task in ("g2", "g3")]
    assert worker.exchange(parked=parcels).parked == (Answer.PARKED, Answer.CROWDED)
    TermsCaller(redis, "bbbbbbbb", "q").withdraw("g2")
    assert worker.again().parked == (Answer.PARKED, Answer.CROWDED)
    assert lines(redis) == {}


def test_order_of_turns_lasts_as_long_as_a_task_waits(worker: TermsCaller, redis: Redis) -> None:
    """Nothing starts for hours, as in a pause. A lane with many turns still comes after one without."""
    needs = in_turns(Limit("api", 1, fair_by="who"))
    held = worker.arrive("x", needs["a"])
    assert held
    for number in range(3):
        worker.arrive(f"a{number}", needs["a"])
    turns = peek(redis).hashes["turns"]
    lapse(redis, *(f"turns:{field}" for field in turns))
    worker.reap()
    store = peek(redis)
    assert store.hashes["turns"] == turns
    assert all(store.sets["ends"][f"turns:{field}"] > store.now + 3_000_000 for field in turns)
    worker.arrive("b0", needs["b"])
    order, run = serve(worker, held, 4)
    assert order.index("b") <= 1
    worker.end(run)
    lapse(redis, *(f"turns:{field}" for field in peek(redis).hashes["turns"]))
    worker.reap()
    assert not peek(redis).hashes["turns"], "no task waits"


def test_finished_turns_go_also_under_constant_waiting(worker: TermsCaller, redis: Redis) -> None:
    limit = Limit("api", 1, fair_by="who")
    run: Arrival | Grant = worker.take("first", terms(limit).needs({"fair": ["last", 1]}))
    worker.arrive("waits", terms(limit).needs({"fair": ["last", 1]}))
    for number in range(9):
        worker.arrive(f"t{number}", terms(limit).needs({"fair": [f"w{number}", 1]}))
        worker.arrive(f"u{number}", terms(limit).needs({"fair": ["busy", 1]}))
        (run,) = worker.release(run, slots=1).grants
    _, run = serve(worker, run, 9)
    assert len(peek(redis).hashes["turns"]) == 12
    lapse(redis, *(f"turns:{field}" for field in peek(redis).hashes["turns"]))
    worker.reap()
    assert peek(redis).hashes["turns"].keys() == {"api", "api\x1ebusy"}


# -- sent back by the outside ------------------------------------------------------------------------------------------


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


def test_places_are_compared_by_their_digits(worker: TermsCaller, redis: Redis) -> None:
    """Of one that goes before all others too: how Lua compares a sign depends on the locale of the server."""
    gpu = terms(Limit("gpu", 2)).same
    both = [worker.arrive(task, gpu) for task in ("g1", "g2")]
    worker.arrive("g3", gpu)
    for held in both:
        assert held
        worker.send_back(held, 0)
    ranks = [head.split("\0")[1] for head in sorted(peek(redis).sets["heads"])]
    assert all(re.fullmatch(r"\d{16}", rank) for rank in ranks), ranks
    assert started(worker.look(2)) == ("g1", "g2"), "among themselves, first come first served"
