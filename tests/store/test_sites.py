"""Limits with permits on each host or worker: shares of a pool, and many lanes; the rest are stories."""

from __future__ import annotations

from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.core.sites import Sites
from tests.store.caller import Heard, ended, started
from tests.store.peek import peek
from tests.store.terms_caller import TermsCaller, terms, used

GPU = Limit("gpu", 2, per="host")


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
    assert used(redis) == {"thumbs/worker=w": 4}


def test_many_lanes_of_one_site_do_not_hide_others(redis: Redis) -> None:
    """Tasks of many tenants wait for a full host; a task without limits behind them starts at once."""
    tenant = Limit("tenant", 1, key="tenant")
    worker = TermsCaller(redis, "w", "q", sites=Sites({"host": "a7", "worker": "w"}))
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
