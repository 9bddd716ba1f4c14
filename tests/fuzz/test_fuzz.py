"""One stored value or message is changed: no script fails, nothing stops, and no task but one is lost."""

from __future__ import annotations

from random import Random

import pytest
from redis import Redis

from celery_throttle import ThrottleControl
from celery_throttle.core.keys import Keys
from celery_throttle.embedded import EmbeddedServer
from tests.failures.tools import DOORS
from tests.fuzz.mutations import mutate
from tests.fuzz.play import fuzz
from tests.fuzz.post import Post
from tests.fuzz.town import Town
from tests.store.peek import check, peek
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER
from tests.support.workers import Workers

_SLICE = 10
_MESSAGES = 80
_CHANGES, _PARKED = 25, 4
#: Seconds. A permit comes back after a lease if the change was of the name of the delivery that holds it.
_LEASE = 3
#: Except those with another readable number in force: overrides and declarations of limits.
_KEYS = ("records", "used", "workers", "lanes", "meta", "waiting")


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


@pytest.mark.parametrize("seed", [1, 2])
def test_worker_consumes_after_any_change(workers: Workers, journal: Journal, seed: int) -> None:
    """A real worker goes on while stored bytes change under it."""
    workers.conf["throttle_lease"] = _LEASE
    # Changed records may let all others start beside the first, and two slots are for the rest.
    worker = workers.start(DOORS, concurrency=_PARKED + 3)
    app, random = workers.app(DOORS), Random(seed)
    journal.let_go("plain", "in between", "new")
    journal.wait_begun(app.hold.delay("first"))
    state = State(lambda: workers.broker)
    state.wait_parked(*(app.hold.delay(f"p{number}") for number in range(_PARKED)))
    keys = {name: Keys("throttle").key(name) for name in _KEYS}
    for _ in range(_CHANGES):
        with state.client() as client:
            mutate(client, keys, random)
        app.pair.delay("in between").get(timeout=HANGS_AFTER)
        app.plain.delay("plain").get(timeout=HANGS_AFTER)

    journal.let_all_go()
    ThrottleControl(app.app).repair()

    app.hold.delay("new").get(timeout=HANGS_AFTER)
    app.plain.delay("plain").get(timeout=HANGS_AFTER)
    assert "Traceback" not in worker.log()


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_changed_message_affects_only_its_own_task(workers: Workers, pool: str) -> None:
    """`python -m tests.fuzz --messages 2000` sends more of them."""
    found = list(Post(workers, pool).play(range(_MESSAGES)))
    assert not found, "\n".join(found)
