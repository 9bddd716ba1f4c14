"""Workers without a pool, and the hints that the store sends to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis
from redis.client import PubSub

from celery_throttle.core.limits import Limit
from tests.primitives.faults import StoreClock
from tests.store import caller, lock_caller
from tests.store import steering as steer
from tests.store.caller import KEYS
from tests.store.lock_caller import LockCaller
from tests.store.peek import check, peek
from tests.store.steering import Steering
from tests.store.terms_caller import TermsCaller


class Hints:
    """The hints published since the last time asked."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._heard: PubSub = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        self._heard.subscribe(KEYS.wake)
        while not self._heard.subscribed or client.pubsub_numsub(KEYS.wake)[0][1] == 0:
            self._heard.get_message(timeout=1)

    def take(self) -> list[str]:
        """Take everything up to now: a mark sent after it proves that nothing is still on its way."""
        self._client.publish(KEYS.wake, "\0mark")
        texts: list[str] = []
        while True:
            message = self._heard.get_message(timeout=5)
            if message is None:
                continue
            text = message["data"].decode()
            if text == "\0mark":
                return texts
            texts.append(text)

    def ready(self) -> list[str]:
        """Return the queues whose workers were sent a hint that they can start something."""
        return [text.removeprefix("ready ") for text in self.take() if text.startswith("ready ")]

    def close(self) -> None:
        self._heard.close()


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
