"""Workers without a pool, and operators."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from celery_throttle.core.limits import Limit
from tests.primitives.faults import StoreClock
from tests.store import caller, lock_caller
from tests.store import steering as steer
from tests.store.hints import Hints
from tests.store.lock_caller import LockCaller
from tests.store.peek import check, peek
from tests.store.steering import Steering
from tests.store.stories import Story
from tests.store.terms_caller import TermsCaller


@pytest.fixture
def one() -> Limit:
    """A limit of one permit."""
    return Limit("gpu", 1)


@pytest.fixture
def two() -> Limit:
    """A limit of two permits; its name begins like that of `one`."""
    return Limit("gpu2", 2)


@pytest.fixture
def peer(redis: Redis) -> TermsCaller:
    """Another worker of the same queue."""
    return TermsCaller(redis, "bbbbbbbb", "q")


@pytest.fixture
def stranger(redis: Redis) -> TermsCaller:
    """A worker of another queue, whose name begins alike."""
    return TermsCaller(redis, "cccccccc", "q2")


@pytest.fixture
def once(redis: Redis) -> LockCaller:
    """A worker and publisher of tasks that run once."""
    return LockCaller(redis, "dddddddd", "q")


@pytest.fixture
def story(redis: Redis, request: pytest.FixtureRequest) -> Story:
    """A story that is to be told, in which each task takes the only permit of a limit."""
    return Story(redis, request)


@pytest.fixture
def lock_story(redis: Redis, request: pytest.FixtureRequest) -> Story:
    """A story that is to be told, in which all tasks have the same identity."""
    return Story(redis, request, "same")


@pytest.fixture
def hints(redis: Redis) -> Iterator[Hints]:
    heard = Hints(redis)
    yield heard
    heard.close()


@pytest.fixture
def steering(redis: Redis) -> Steering:
    """The caller that steers the limits."""
    return Steering(redis)


@pytest.fixture
def clock(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> StoreClock:
    """The time of the store, for workers and operators: it stands still until the test moves it."""
    made = StoreClock(redis)
    seconds, microseconds = redis.time()
    made.set(seconds * 1_000_000 + microseconds)
    for module in (caller, lock_caller, steer):
        monkeypatch.setattr(module, "execute", made.execute)
    return made


@pytest.fixture(autouse=True)
def _consistent(redis: Redis) -> Iterator[None]:
    """Check the indexes of the store after each test."""
    yield
    check(peek(redis))
