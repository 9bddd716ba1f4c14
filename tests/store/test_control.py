"""Overrides of a limit at run time: their effect at the gate, and the workers that get a hint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from celery_throttle.core.limits import Limit
from tests.store.caller import started
from tests.store.peek import KEY, peek
from tests.store.terms_caller import TermsCaller, lines, nothing_left, terms, used
from tests.support.waiting import until

if TYPE_CHECKING:
    from redis import Redis

    from celery_throttle.core.policy import Needs
    from tests.primitives.faults import StoreClock
    from tests.store.conftest import Hints
    from tests.store.steering import Steering

API, TENANT = Limit("api", 2), Limit("tenant", 1, key="tenant")
ONE = terms(API).same


@pytest.fixture
def worker(redis: Redis) -> TermsCaller:
    return TermsCaller(redis, "aaaaaaaa", "q")


@pytest.fixture
def other(redis: Redis) -> TermsCaller:
    return TermsCaller(redis, "cccccccc", "q2")


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
    worker: TermsCaller, other: TermsCaller, steering: Steering, hints: Hints
) -> None:
    fill(worker, ONE, 4)
    other.put("there", ONE)
    hints.take()
    steering.say(API, "override", 4)
    assert hints.take() == ["line api", "ready q"]
    assert started(worker.look(9)) == ("t2", "t3")
    assert steering.say(API, "override", 5) == 1
    assert started(other.look(9)) == ("there",)


def test_with_fewer_those_that_run_go_on(worker: TermsCaller, steering: Steering, redis: Redis) -> None:
    held = fill(worker, ONE, 4)
    steering.say(API, "override", 1)
    assert worker.end(held[0], slots=5) == ()
    assert used(redis) == {"api": 1}
    assert worker.end(held[1], slots=5) == ("t2",)
    assert steering.unsay(API, "override") == 1
    assert started(worker.look(5)) == ("t3",)
    assert steering.unsay(API, "override") == 0
    assert not said(redis)


def test_an_override_of_one_key_comes_before_that_of_all(worker: TermsCaller, steering: Steering) -> None:
    for name in "ab":
        fill(worker, of(name), 4, name)
    steering.say("tenant\x1fa", "override", 3)
    assert started(worker.look(9)) == ("a1", "a2")
    steering.say("tenant", "override", 2)
    assert started(worker.look(9)) == ("b1",)
    steering.unsay("tenant\x1fa", "override")
    assert steering.stands("tenant\x1fa").in_force == 2


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


def test_one_key_is_paused(worker: TermsCaller, steering: Steering) -> None:
    steering.say("tenant\x1fa", "pause")
    assert not worker.arrive("a", of("a"))
    assert worker.arrive("b", of("b"))
    assert not worker.arrive("b2", of("b"))
    assert started(worker.look(9)) == ()
    steering.unsay("tenant\x1fa", "pause")
    assert started(worker.look(9)) == ("a",)


def test_all_keys_are_paused(worker: TermsCaller, steering: Steering) -> None:
    for tenant in "ab":
        worker.arrive(tenant, of(tenant))
    steering.say("tenant", "pause")
    assert not worker.arrive("c", of("c"))
    steering.say("tenant\x1fc", "pause")
    steering.unsay("tenant", "pause")
    assert not started(worker.look(9)), "its own pause goes on"
    steering.unsay("tenant\x1fc", "pause")
    assert started(worker.look(9)) == ("c",)


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


def test_disabled_limit_counts_and_parks_no_task(worker: TermsCaller, steering: Steering, redis: Redis) -> None:
    fill(worker, ONE, 3)
    steering.say(API, "disable")
    assert started(worker.look(9)) == ("t2",)
    assert worker.arrive("t3", ONE)
    assert used(redis) == {"api": 4}
    steering.unsay(API, "disable")
    assert not worker.arrive("t4", ONE)
    assert not started(worker.look(9)), "it has to drain"


def test_a_disabled_limit_has_no_rate(worker: TermsCaller, steering: Steering) -> None:
    mail = terms(Limit("mail", rate="1/h")).same
    fill(worker, mail, 3)
    steering.say("mail", "disable")
    assert started(worker.look(9)) == ("t1", "t2")


def test_a_pause_outdoes_disable(worker: TermsCaller, steering: Steering) -> None:
    steering.say(API, "disable")
    steering.say(API, "pause")
    assert not worker.arrive("t", ONE, slots=5)
    steering.unsay(API, "disable")
    steering.unsay(API, "pause")
    assert started(worker.look(5)) == ("t",)


# -- until -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "value"), [("pause", 1), ("override", 1)])
@pytest.mark.parametrize("pool", ["tenant", "tenant\x1fa"])
def test_parking_and_looking_return_the_end_of_a_pause(
    name: str, value: int, pool: str, worker: TermsCaller, steering: Steering, clock: StoreClock
) -> None:
    a = terms(Limit("tenant", 2, key="t")).needs({"keys": {"tenant": "a"}})
    held = worker.arrive("t0", a)
    steering.say(pool, name, value, until="+300")
    assert 0.3 <= worker.put("t1", a, slots=1).wait <= 0.31
    reply = worker.look(1)
    assert 0.3 <= reply.wait <= 0.31
    assert held
    clock.move(int(reply.wait * 1_000_000))
    assert started(worker.look(1)) == ("t1",)


def test_task_of_several_limits_gets_the_end_too(worker: TermsCaller, steering: Steering, clock: StoreClock) -> None:
    needs = terms(Limit("left", 2), Limit("right", 3), cost=2).same
    steering.say("right", "override", 2, until="+300")
    held = worker.arrive("small", terms(Limit("right", 3)).same)
    assert held
    assert 0.3 <= worker.put("big", needs, slots=1).wait <= 0.31
    clock.move(310_000)
    assert started(worker.look(1)) == ("big",)


def test_a_rate_holds_again_when_disable_ends(worker: TermsCaller, steering: Steering, clock: StoreClock) -> None:
    mail = terms(Limit("mail", 1, rate="1/h", burst=2)).same
    fill(worker, mail, 3)
    steering.say("mail", "disable", until="+200")
    assert started(worker.look(9)) == ("t1", "t2")
    clock.move(200_000)
    assert not worker.arrive("late", mail)


def test_the_sooner_of_two_ends_counts(worker: TermsCaller, steering: Steering, clock: StoreClock) -> None:
    steering.say(API, "pause", until="+60000")
    steering.say(API, "override", 1, until="+200")
    assert 0.2 <= worker.put("t", ONE, slots=1).wait <= 0.21
    clock.move(200_000)
    assert worker.look(1).wait > 1


def test_a_time_that_is_over_is_refused(steering: Steering, redis: Redis) -> None:
    assert steering.say(API, "pause", until="1000") == -1
    assert not said(redis)


def test_ended_override_cannot_be_taken_back(steering: Steering, redis: Redis, clock: StoreClock) -> None:
    steering.say(API, "pause", until="+1")
    clock.move(1_000)
    assert not steering.stands(API).paused
    assert steering.unsay(API, "pause") == 0
    assert not said(redis)


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


def test_of_many_keys_all_start_in_a_few_looks(worker: TermsCaller, other: TermsCaller, steering: Steering) -> None:
    """More than one call wakes at once; others that cannot start come before them by name."""
    blocked = terms(Limit("blocked", 1, key="k"))
    steering.say("blocked", "pause")
    steering.say("tenant", "pause")
    for number in range(300):
        worker.put(f"b{number}", blocked.needs({"keys": {"blocked": f"{number:03}"}}))
        worker.put(f"t{number}", of(f"{number:03}"))
    other.put("elsewhere", of("999"))
    steering.unsay("tenant", "pause")
    found: set[str] = set()
    for _ in range(60):
        reply = worker.look(1000)
        found |= set(started(reply))
        if not reply.more:
            break
    assert len(found) == 300
    assert not reply.more
    assert started(other.look(9)) == ("elsewhere",)
    until(lambda: not other.look(9).more)


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
