"""Limits with permits on each host, worker or tag: which tasks the scripts start on which site."""

from __future__ import annotations

import pytest
from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.core.sites import Sites
from celery_throttle.store.exchange_reply import Answer
from tests.store.caller import Caller, Heard, ended, started
from tests.store.hints import Hints
from tests.store.peek import KEY, peek
from tests.store.terms_caller import TermsCaller, terms

GPU = Limit("gpu", 2, per="host")


def on(client: Redis, host: str, name: str = "", *queues: str, size: int = 0, **tags: str) -> TermsCaller:
    """A worker of a host."""
    name = name or f"w-{host}"
    sites = Sites({"host": host, "worker": name, **tags}, (lambda: size) if size else None)
    return TermsCaller(client, name, *(queues or ("q",)), sites=sites)


def used(client: Redis) -> dict[str, int]:
    """Return the permits that are held, by site."""
    return {bucket.partition("\x1d")[2]: held for bucket, held in peek(client).used.items()}


@pytest.fixture
def a7(redis: Redis) -> TermsCaller:
    return on(redis, "a7")


@pytest.fixture
def a8(redis: Redis) -> TermsCaller:
    return on(redis, "a8")


def test_each_host_has_the_permits(a7: Caller, a8: Caller, redis: Redis) -> None:
    held = [each.take(f"{each.name} {number}", GPU) for each in (a7, a8) for number in range(2)]
    assert used(redis) == {"host=a7": 2, "host=a8": 2}
    assert a7.ask("more", GPU)[0] == Answer.MUST_PARK
    a7.release(held[0])
    a7.take("more", GPU)


def test_a_task_that_waits_is_started_by_the_host_that_has_room(a7: Caller, a8: Caller, redis: Redis) -> None:
    for number in range(2):
        a7.take(f"t{number}", GPU)
    for number in range(4):
        assert not a7.put(f"p{number}", GPU, slots=1).grants
    assert started(a8.look(8)) == ("p0", "p1")
    assert used(redis) == {"host=a7": 2, "host=a8": 2}


def test_one_line_for_all(a7: Caller, a8: Caller) -> None:
    """A task that comes to a host with room does not start before those that wait."""
    held = [a7.take(f"t{number}", GPU) for number in range(2)]
    a7.put("p", GPU)
    reply = a8.exchange(asked=[a8.arrival("late", GPU)])
    assert (reply.asked, started(reply)) == ((Answer.MUST_PARK,), ("p",))
    a8.put("late", GPU)
    a7.put("later", GPU)
    assert started(a7.release(held[0], slots=1)) == ("late",)


def test_it_goes_back_in_line_for_any_host(a7: Caller, a8: Caller, redis: Redis) -> None:
    a7.put("t", GPU)
    (grant,) = a7.look().grants
    assert used(redis) == {"host=a7": 1}
    a7.release(grant, "again")
    (grant,) = a8.look().grants
    assert used(redis) == {"host=a8": 1}
    a8.release(grant)
    assert not peek(redis).records


def test_a_worker_without_the_tag_takes_none(a7: Caller, redis: Redis) -> None:
    box = Limit("box", 1, per="gpu_box")
    assert a7.ask("t", box)[0] == Answer.MUST_PARK
    assert not a7.put("t", box, slots=4).grants
    other = on(redis, "a9", gpu_box="b1")
    assert started(other.look()) == ("t",)
    assert used(redis) == {"gpu_box=b1": 1}


def test_a_refused_head_of_one_tag_does_not_hold_up_another(redis: Redis) -> None:
    red, blue = Limit("red", 1, per="red"), Limit("blue", 1, per="blue")
    worker = on(redis, "a7", red="r1", blue="b1")
    worker.take("r", red)
    for task, limit in (("r2", red), ("r3", red), ("b", blue)):
        worker.put(task, limit)
    assert started(worker.look(3)) == ("b",)


def test_another_limit_holds_up_only_its_own(redis: Redis) -> None:
    api = Limit("api", 1)
    both, worker = terms(GPU, api).same, on(redis, "a7")
    held = worker.take("t", api)
    worker.put("both", both)
    worker.put("gpu", GPU)
    assert started(worker.look(3)) == ("gpu",)
    assert started(worker.release(held, slots=3)) == ("both",)


def test_a_newer_task_does_not_take_the_permits_that_an_older_one_needs(redis: Redis) -> None:
    worker = on(redis, "a7")
    one = worker.take("t", GPU)
    worker.put("big", terms(GPU, cost=2).same)
    worker.put("small", GPU)
    assert started(worker.look(3)) == ()
    assert started(worker.release(one, slots=3)) == ("big",)


def test_a_permit_of_a_lost_worker_comes_back_on_its_host(a7: Caller, a8: Caller, redis: Redis) -> None:
    for number in range(2):
        a7.take(f"t{number}", GPU)
        a8.take(f"u{number}", GPU)
    a8.put("p", GPU)
    redis.zadd(KEY["leases"], {"t0": 1, "t1": 1})
    assert not a8.look(2).grants
    assert used(redis) == {"host=a8": 2}
    assert started(on(redis, "a7", "next").look(2)) == ("p",)


def test_workers_of_the_site_get_the_hint(a7: Caller, hints: Hints) -> None:
    """The worker that gave the permit back has no slot for the next task."""
    held = [a7.take(f"t{number}", GPU) for number in range(2)]
    a7.put("p", GPU)
    hints.take()
    a7.exchange(0, ended=[ended(held[0])])
    assert "site host=a7" in hints.take()


def test_a_share_follows_the_size_of_the_pool(redis: Redis) -> None:
    half = Limit("thumbs", share=0.5, per="worker")
    size = 3
    sites = Sites({"host": "a7", "worker": "w"}, lambda: size)
    worker = TermsCaller(redis, "w", "q", sites=sites)

    def starts(count: int) -> int:
        for number in range(count):
            worker.put(f"t{worker.number} {number}", half)
        return sum(len(worker.look(8).grants) for _ in range(2))

    assert starts(8) == 2
    size = 8
    assert starts(0) == 2
    assert used(redis) == {"worker=w": 4}


def test_permits_are_counted_for_each_worker(redis: Redis) -> None:
    limit = Limit("own", 1, per="worker")
    one, other = on(redis, "a7", "one"), on(redis, "a7", "other")
    one.take("t1", limit)
    other.take("t2", limit)
    assert one.ask("t3", limit)[0] == Answer.MUST_PARK


def test_a_raised_limit_starts_tasks_on_each_site(a7: Caller, a8: Caller, hints: Hints) -> None:
    for each in (a7, a8):
        for number in range(2):
            each.take(f"{each.name} {number}", GPU)
    for number in range(4):
        a7.put(f"p{number}", GPU)
    hints.take()
    a7.declare(Limit("gpu", 3, per="host"))
    assert "site host" in hints.take()
    assert (len(a7.look(4).grants), len(a8.look(4).grants)) == (1, 1)


def test_many_lanes_of_one_site_do_not_hide_others(redis: Redis) -> None:
    """Tasks of many tenants wait for a full host; a task without limits behind them starts at once."""
    tenant, worker = Limit("tenant", 1, key="tenant"), on(redis, "a7")
    held = [worker.take(f"t{number}", GPU) for number in range(2)]
    for number in range(60):
        needs = terms(GPU, tenant).needs({"keys": {"tenant": str(number)}})
        worker.put(f"p{number}", needs)
    worker.put("plain", Limit("other", 1))
    assert started(worker.look(1)) == ("plain",)
    order: list[str] = []
    reply: Heard = worker.release(held[0], slots=1)
    for _ in range(100):
        order += started(reply)
        done = [ended(grant) for grant in reply.grants]
        if not done and not reply.more and not peek(redis).parked:
            break
        reply = worker.exchange(1, ended=done)
    assert sorted(order) == sorted(f"p{number}" for number in range(60))
