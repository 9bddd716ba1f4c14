"""One stored value is changed: no script fails, nothing stops, no task but one is lost, and all can be read."""

from __future__ import annotations

import pytest
from redis import Redis

from celery_throttle.embedded import EmbeddedServer
from tests.fuzz.play import fuzz
from tests.fuzz.town import Town
from tests.store.peek import check, peek

_SLICE = 10


@pytest.mark.parametrize("first", range(0, 4 * _SLICE, _SLICE))
def test_changed_value_affects_only_its_own_task(redis: Redis, server: EmbeddedServer, first: int) -> None:
    """`python -m tests.fuzz` plays more of them."""
    found = [str(each) for each in fuzz(redis, server.url, range(first, first + _SLICE)) if each]
    assert not found, "\n".join(found)


def test_the_town_is_healthy_before_and_after_a_way_back(redis: Redis) -> None:
    town = Town(redis)
    check(peek(redis))
    redis.flushdb()
    town.restore()
    check(peek(redis))
