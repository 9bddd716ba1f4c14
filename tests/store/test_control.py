"""Overrides of a limit at run time: their effect at the gate, and the workers that get a hint."""

from __future__ import annotations

import json
from typing import Any

from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import Needs
from tests.primitives.faults import StoreClock
from tests.store.caller import started
from tests.store.hints import Hints
from tests.store.peek import KEY, peek
from tests.store.steering import Steering
from tests.store.terms_caller import TermsCaller, lines, nothing_left, terms
from tests.support.waiting import until

API, TENANT = Limit("api", 2), Limit("tenant", 1, key="tenant")
ONE = terms(API).same


def of(tenant: str) -> Needs:
    return terms(TENANT).needs({"keys": {"tenant": tenant}})


def fill(worker: TermsCaller, needs: Needs, count: int, name: str = "t") -> list[Any]:
    """So many arrive; those that got in."""
    held = [worker.arrive(f"{name}{number}", needs) for number in range(count)]
    return [each for each in held if each]


def said(redis: Redis) -> set[str]:
    """Return the buckets with an override in the store."""
    return set(peek(redis).hashes["overrides"])


# -- override ----------------------------------------------------------------------------------------------------------


def test_a_raise_wakes_every_queue_and_starts_them(
    worker: TermsCaller, stranger: TermsCaller, steering: Steering, hints: Hints
) -> None:
    fill(worker, ONE, 4)
    stranger.put("there", ONE)
    hints.take()
    steering.say(API, "override", 4)
    assert hints.take() == ["line api", "ready q"]
    assert started(worker.look(9)) == ("t2", "t3")
    assert steering.say(API, "override", 5) == 1
    assert started(stranger.look(9)) == ("there",)


# -- pause -------------------------------------------------------------------------------------------------------------


def test_a_pause_lets_nothing_start(worker: TermsCaller, steering: Steering, redis: Redis, hints: Hints) -> None:
    held = fill(worker, ONE, 3)
    steering.say(API, "pause")
    assert [worker.end(each, slots=5) for each in held] == [(), ()]
    assert not worker.arrive("new", ONE, slots=5)
    assert not started(worker.look(5))
    assert lines(redis) == {"api": ["t2", "new"]}
    hints.take()
    assert steering.unsay(API, "pause") == 1
    assert hints.ready() == ["q"]
    assert started(worker.look(5)) == ("t2", "new")


# -- disable -----------------------------------------------------------------------------------------------------------


def test_pause_ends_also_if_the_worker_that_ends_it_is_lost(worker: TermsCaller, steering: Steering) -> None:
    """Right after the call that ended it, before it could look at all keys."""
    steering.say(TENANT, "pause")
    for number in range(250):
        worker.put(f"t{number}", of(f"k{number}"))
    steering.ask(steering.store.control("tenant", "pause", "", "0", "ana", "w"))
    reply = worker.look(5)
    assert len(reply.grants) == 5
    assert reply.more
    left = 0
    for _ in range(245):
        reply = worker.look(500)
        assert reply.grants
        left += len(reply.grants)
        if not reply.more:
            break
    assert left == 245


# -- until -------------------------------------------------------------------------------------------------------------


def test_the_sooner_of_two_ends_counts(worker: TermsCaller, steering: Steering, clock: StoreClock) -> None:
    steering.say(API, "pause", until="+60000")
    steering.say(API, "override", 1, until="+200")
    assert 0.2 <= worker.put("t", ONE, slots=1).wait <= 0.21
    clock.move(200_000)
    assert worker.look(1).wait > 1


def test_ended_overrides_of_unused_keys_are_cleared(
    worker: TermsCaller, steering: Steering, redis: Redis, clock: StoreClock
) -> None:
    for number in range(50):
        steering.say(f"tenant\x1f{number}", "pause", until="+1")
    clock.move(1_000)
    for _ in range(2):
        worker.reap()
    assert not said(redis)


def test_override_without_end_stays(worker: TermsCaller, steering: Steering, redis: Redis, clock: StoreClock) -> None:
    """An override without an end stays beside one that ends, in both orders."""
    orders = [("pause", "override"), ("override", "pause")]
    for number, (first, second) in enumerate(orders):
        steering.say(f"tenant\x1f{number}", first, until="+1" if first == "override" else "0")
        steering.say(f"tenant\x1f{number}", second, until="+1" if second == "override" else "0")
    steering.say(API, "pause")
    clock.move(1_000)
    assert not steering.stands("tenant\x1f1").override
    worker.reap()
    steering.unsay("other", "pause")
    assert said(redis) == {"api", "tenant\x1f0", "tenant\x1f1"}
    steering.say(API, "pause", until="+1")
    clock.move(1_000)
    assert not steering.stands(API).paused
    worker.reap()
    assert said(redis) == {"tenant\x1f0", "tenant\x1f1"}


def test_a_bar_stays_beside_it(steering: Steering, redis: Redis) -> None:
    bar = [7, 9e12, "", "t", 1]
    redis.hset(KEY["overrides"], "api", json.dumps({"bar": bar, "hold": [1, 1, "", "", 1]}))
    redis.zadd(KEY["ends"], {"overrides:api": 9e12})
    steering.say(API, "override", 3)
    steering.unsay(API, "override")
    assert json.loads(peek(redis).hashes["overrides"]["api"]) == {"bar": bar}


# -- workers that get a hint -------------------------------------------------------------------------------------------


def test_of_many_keys_all_start_in_a_few_looks(worker: TermsCaller, stranger: TermsCaller, steering: Steering) -> None:
    """More than one call wakes at once; others that cannot start come before them by name."""
    blocked = terms(Limit("blocked", 1, key="k"))
    steering.say("blocked", "pause")
    steering.say("tenant", "pause")
    for number in range(300):
        worker.put(f"b{number}", blocked.needs({"keys": {"blocked": f"{number:03}"}}))
        worker.put(f"t{number}", of(f"{number:03}"))
    stranger.put("elsewhere", of("999"))
    steering.unsay("tenant", "pause")
    found: set[str] = set()
    for _ in range(60):
        reply = worker.look(1000)
        found |= set(started(reply))
        if not reply.more:
            break
    assert len(found) == 300
    assert not reply.more
    assert started(stranger.look(9)) == ("elsewhere",)
    until(lambda: not stranger.look(9).more)


def test_with_few_slots_no_line_is_left_out(worker: TermsCaller, steering: Steering) -> None:
    blocked = terms(Limit("blocked", 1, key="k"))
    for name in ("blocked", "tenant"):
        steering.say(name, "pause")
    for number in range(600):
        worker.put(f"b{number}", blocked.needs({"keys": {"blocked": f"{number:03}"}}))
    for number in range(300):
        worker.put(f"t{number}", of(f"{number:03}"))
    steering.unsay("tenant", "pause")
    found: list[str] = []
    while (reply := worker.look(40)).more:
        found += started(reply)
    found += started(reply)
    assert len(found) == len(set(found)) == 300


def test_two_changes_at_once_are_both_served(worker: TermsCaller, steering: Steering) -> None:
    for name, count in (("left", 700), ("right", 300)):
        steering.say(name, "pause")
        keyed = terms(Limit(name, 1, key="k"))
        for number in range(count):
            worker.put(f"{name}{number}", keyed.needs({"keys": {name: f"{number:03}"}}))
    for name in ("left", "right"):
        steering.unsay(name, "pause")
    found: list[str] = []
    while (reply := worker.look(1000)).more:
        found += started(reply)
    assert len(found) + len(started(reply)) == 1000


def test_the_store_is_as_it_was(worker: TermsCaller, steering: Steering, redis: Redis) -> None:
    held = fill(worker, ONE, 3)
    for name in ("override", "pause", "disable"):
        steering.say(API, name, 2)
        steering.unsay(API, name)
    ended = [worker.end(each, slots=0) for each in held]
    assert ended == [(), ()]
    (grant,) = worker.look(1).grants
    worker.end(grant)
    assert nothing_left(redis)
    assert not said(redis)


def test_override_is_kept_until_its_end(steering: Steering, redis: Redis) -> None:
    """By the index of time, too, which clears it then."""
    steering.say(API, "pause", until="+60000")
    assert redis.zscore(KEY["ends"], "overrides:api") == json.loads(peek(redis).hashes["overrides"]["api"])["pause"][1]
