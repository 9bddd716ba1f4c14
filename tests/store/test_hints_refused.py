"""A Redis user that may not publish hints: nothing is lost for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.embedded import EmbeddedServer
from tests.store.caller import Caller, ended, started
from tests.store.peek import expire, peek
from tests.store.steering import Steering


@pytest.fixture
def mute(redis: Redis, server: EmbeddedServer) -> Iterator[Redis]:
    """A client that may do all but that."""
    user: dict[str, Any] = {"keys": ["*"], "categories": ["+@all"], "passwords": ["+secret"]}
    redis.acl_setuser("mute", enabled=True, reset_channels=True, **user)
    with Redis.from_url(server.url, username="mute", password="secret") as client:
        yield client
    redis.acl_deluser("mute")


def test_refused_hint_is_reported_once_it_was_due(mute: Redis, one: Limit) -> None:
    worker = Caller(mute, "aaaaaaaa", "q")
    held = worker.take("t1", one)
    assert worker.look().hints
    assert not worker.put("t2", one).hints, "a line began"
    assert not worker.release(held).hints


def test_whole_call_takes_effect_without_hints(mute: Redis, redis: Redis, one: Limit) -> None:
    """One call ends a run, parks tasks, starts the oldest, and would send hints about the rest."""
    worker, elsewhere = Caller(mute, "aaaaaaaa", "q"), Caller(mute, "bbbbbbbb", "q2")
    held = worker.take("t1", one)
    elsewhere.put("t2", one)
    parcels = [worker.parcel(task, one) for task in ("t3", "t4")]
    reply = worker.exchange(1, ended=[ended(held)], parked=parcels)
    assert reply.parked == (2, 2)
    assert peek(redis).waiting("gpu") == ["t2", "t3", "t4"]
    assert started(elsewhere.look()) == ("t2",)
    assert peek(redis).hashes["workers"].keys() == {"aaaaaaaa", "bbbbbbbb"}


def test_all_other_scripts_go_on(mute: Redis, redis: Redis, one: Limit) -> None:
    worker = Caller(mute, "aaaaaaaa", "q")
    worker.take("t1", one)
    worker.put("t2", one)
    expire(redis, "t1")
    assert worker.reap() == [("t1", "1:gpu")]
    steering = Steering(mute)
    assert steering.say(one, "pause") == 1
    assert steering.unsay(one, "pause") == 1
    worker.declare(type(one)("gpu", 5))
    assert started(worker.look()) == ("t2",)
