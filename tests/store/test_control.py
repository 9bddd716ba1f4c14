"""Overrides at run time: what no story of test_limit_stories.py has, such as many keys."""

from __future__ import annotations

import json

import pytest
from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import Needs
from tests.primitives.faults import StoreClock
from tests.store.caller import started
from tests.store.peek import KEY, peek
from tests.store.steering import Steering
from tests.store.terms_caller import TermsCaller, terms
from tests.support.waiting import until

API = Limit("api", 2)


def of(key: str, limit: str) -> Needs:
    return terms(Limit(limit, 1, key="k")).needs({"keys": {limit: key}})


def park_each(worker: TermsCaller, limit: str, count: int) -> None:
    """Park so many tasks, each with a key of its own."""
    for number in range(count):
        worker.put(f"{limit}{number}", of(f"{number:03}", limit))


def look_on(worker: TermsCaller, slots: int) -> list[str]:
    """Look for as long as replies ask for it; the tasks that started."""
    found: list[str] = []
    for _ in range(250):
        reply = worker.look(slots)
        found += started(reply)
        if not reply.more:
            return found
    pytest.fail("there is no end to it")


def test_pause_ends_also_if_the_worker_that_ends_it_is_lost(worker: TermsCaller, steering: Steering) -> None:
    """Right after the call that ended it, before it could look at all keys."""
    steering.say("tenant", "pause")
    park_each(worker, "tenant", 250)
    steering.ask(steering.store.control("tenant", "pause", "", "0", "ana", "w"))
    reply = worker.look(5)
    assert len(reply.grants) == 5
    assert reply.more
    assert len(look_on(worker, 500)) == 245


def test_ended_overrides_of_unused_keys_are_cleared(
    worker: TermsCaller, steering: Steering, redis: Redis, clock: StoreClock
) -> None:
    for number in range(50):
        steering.say(f"tenant\x1f{number}", "pause", until="+1")
    clock.move(1_000)
    for _ in range(2):
        worker.reap()
    assert not peek(redis).hashes["overrides"]


def test_a_bar_stays_beside_it(steering: Steering, redis: Redis) -> None:
    bar = [7, 9e12, "", "t", 1]
    redis.hset(KEY["overrides"], "api", json.dumps({"bar": bar, "hold": [1, 1, "", "", 1]}))
    redis.zadd(KEY["ends"], {"overrides:api": 9e12})
    steering.say(API, "override", 3)
    steering.unsay(API, "override")
    assert json.loads(peek(redis).hashes["overrides"]["api"]) == {"bar": bar}


@pytest.mark.parametrize(
    ("blocked", "counts", "slots"),
    [
        pytest.param(300, {"tenant": 300}, 1000, id="more than one call wakes, behind others that cannot start"),
        pytest.param(600, {"tenant": 300}, 40, id="with few slots"),
        pytest.param(0, {"left": 700, "right": 300}, 1000, id="of two limits"),
    ],
)
def test_when_pauses_end_the_tasks_of_all_keys_start(
    worker: TermsCaller, stranger: TermsCaller, steering: Steering, blocked: int, counts: dict[str, int], slots: int
) -> None:
    for name, count in {"blocked": blocked, **counts}.items():
        steering.say(name, "pause")
        park_each(worker, name, count)
    stranger.put("elsewhere", of("999", next(iter(counts))))
    for name in counts:
        steering.unsay(name, "pause")
    found = look_on(worker, slots)
    assert sorted(found) == sorted(f"{name}{number}" for name, count in counts.items() for number in range(count))
    assert started(stranger.look(9)) == ("elsewhere",)
    until(lambda: not stranger.look(9).more)


def test_override_is_kept_until_its_end(steering: Steering, redis: Redis) -> None:
    """By the index of time, too, which clears it then."""
    steering.say(API, "pause", until="+60000")
    assert redis.zscore(KEY["ends"], "overrides:api") == json.loads(peek(redis).hashes["overrides"]["api"])["pause"][1]
