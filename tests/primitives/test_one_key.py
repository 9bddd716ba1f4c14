"""What holds for a counter and for a rate limiter alike: each has one key, and each method is one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from celery_throttle.embedded import EmbeddedServer
from tests.primitives.sides import SyncSide
from tests.store.cost import commands

#: A call of each method with its answer, one after the other.
CALLS: dict[str, list[tuple[Callable[[Any], object], object]]] = {
    "Counter": [
        (lambda it: it.add(5, call_id="a"), 5),
        (lambda it: it.add(5, call_id="a"), 5),
        (lambda it: it.get(), 5),
        (lambda it: it.compare_and_set(5, 6), True),
        (lambda it: it.advance(1, 0), 7),
        (lambda it: it.get_and_reset(), 7),
    ],
    "RateLimiter": [
        (lambda it: it.acquire().allowed, True),
        (lambda it: it.peek().allowed, False),
        (lambda it: it.reserve(call_id="a").booked, True),
        (lambda it: it.cancel("a"), True),
    ],
}
#: The arguments after the name, and the part of the key before it.
ARGUMENTS: dict[str, Any] = {"Counter": (), "RateLimiter": (["2/h", "7/d"],)}
PARTS = {"Counter": "counter", "RateLimiter": "rate"}


@pytest.fixture(params=CALLS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("name", ["*", "{other}:1", "a:b", "é", "a b", "n" * 200])
def test_any_printable_name_will_do(make: Callable[..., Any], redis: Redis, kind: str, name: str) -> None:
    call, answer = CALLS[kind][0]
    assert call(make(kind, name, *ARGUMENTS[kind])) == answer
    assert redis.exists(f"{{throttle}}:3:{PARTS[kind]}:{name}")


@pytest.mark.parametrize("decode", [False, True])
def test_any_kind_of_client_and_scripts_forgotten_in_between(
    side: SyncSide, server: EmbeddedServer, redis: Redis, kind: str, decode: bool
) -> None:
    one = side.make(kind, side.client(server.url, decode_responses=decode), "a", *ARGUMENTS[kind])
    for call, answer in CALLS[kind]:
        redis.script_flush()
        assert call(one) == answer


def test_each_method_is_one_call(make: Callable[..., Any], redis: Redis, kind: str) -> None:
    one = make(kind, "a", *ARGUMENTS[kind])
    for call, _ in CALLS[kind]:
        call(one)  # teaches the server the script
    with commands(redis) as sent:
        for call, _ in CALLS[kind]:
            call(one)
    assert sent["evalsha"] == len(CALLS[kind])
    assert not sent.keys() & {"eval", "watch", "multi", "script|load"}
