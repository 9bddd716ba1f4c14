"""An argument that cannot work is refused by its name, with the value, before anything is sent."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from celery_throttle.errors import ConfigurationError

#: Arguments that work, of each class and of each method that needs some.
WORKING: dict[str, dict[str, Any]] = {
    "Counter": {"name": "orders"},
    "Counter.compare_and_set": {"expected": 1, "new": 2},
    "Counter.advance": {"step": 1},
    "IdentityLock": {},
    "IdentityLock.acquire": {"identity": "a", "blocking": True, "timeout": 1},
    "IdentityLock.forget": {"identity": "a", "fencing_token": 1},
    "FairSemaphore": {"name": "two", "limit": 2},
    "FairSemaphore.acquire": {"timeout": 1},
    "RateLimiter": {"name": "api", "rates": "1/d"},
}
NO_NAMES = ("", "n" * 201, "a\0b", "a\nb", None, b"orders")
NO_PREFIXES = ("", "{a}", "a*", "a b", "a\n", None, 1)
NO_LEASES = (0, True, math.nan, math.inf, "60")
NO_IDENTITIES = (None, 17, ["a"], ("a", 1))

#: In place of one argument each of these values, and the error, with {} for the value.
REFUSED: list[tuple[str, str, tuple[Any, ...], str]] = [
    ("Counter", "name", NO_NAMES, "counter name must be .* got {}:"),
    ("Counter", "prefix", NO_PREFIXES, "prefix must be .* got {}:"),
    ("Counter.add", "amount", (1.0, True, 2**53, -(2**53)), "amount must be .* got {}:"),
    ("Counter.add", "call_id", ("",), "call_id must be 1 to 200 .* got {}:"),
    ("Counter.compare_and_set", "expected", ("1",), "expected must be .* got {}:"),
    ("Counter.compare_and_set", "new", (None,), "new must be .* got {}:"),
    ("Counter.advance", "step", (-1,), "step must be a whole number from 0 .* got {}:"),
    ("Counter.advance", "floor", (1.5,), "floor must be .* got {}:"),
    ("Counter.get_and_reset", "call_id", (7,), "call_id must be .* got {}:"),
    ("IdentityLock", "prefix", ("", "a{b}", 1), "prefix must be .* got {}:"),
    ("IdentityLock", "lease", (0,), "lease must be .* got {}:"),
    ("IdentityLock.acquire", "identity", NO_IDENTITIES, "identity must be str or bytes, got .*: {}"),
    ("IdentityLock.acquire", "lease", NO_LEASES, "lease must be seconds .* got {}:"),
    ("IdentityLock.acquire", "owner", ("", b"me", "a\nb", "a" * 201), "owner must be .* got {}:"),
    ("IdentityLock.acquire", "timeout", (-1, math.nan, "1"), "timeout must be .* got {}:"),
    ("IdentityLock.acquire", "blocking", (False,), "timeout=1 is for blocking=True"),
    ("IdentityLock.locked_by", "identity", NO_IDENTITIES, "identity must be str or bytes, got .*: {}"),
    ("IdentityLock.forget", "identity", NO_IDENTITIES, "identity must be str or bytes, got .*: {}"),
    ("IdentityLock.forget", "fencing_token", (None, "1", True, 1.0), "fencing_token must be .* got {}:"),
    ("FairSemaphore", "name", ("", 1, "a\nb"), "semaphore name must be .* got {}:"),
    ("FairSemaphore", "prefix", ("a{b}",), "prefix must be .* got {}:"),
    ("FairSemaphore", "lease", (0,), "lease must be .* got {}:"),
    ("FairSemaphore", "limit", (0, -1, True, 1.0, "2", 1_000_001), "limit must be .* got {}:"),
    ("FairSemaphore.set_limit", "limit", (-1, True, 1.0, "2", 1_000_001), "limit must be .* got {}:"),
    ("FairSemaphore.acquire", "lease", NO_LEASES, "lease must be .* got {}:"),
    ("FairSemaphore.acquire", "holder", ("", b"me", "a\nb", "a" * 201), "holder must be .* got {}:"),
    ("FairSemaphore.acquire", "timeout", (-1, "1"), "timeout must be .* got {}:"),
    ("FairSemaphore.acquire", "blocking", (False,), "timeout=1 is for blocking=True"),
    ("RateLimiter", "name", ("",), "rate name must be 1 to 200 .* got {}:"),
    ("RateLimiter", "prefix", ("{x}",), "prefix must be .* got {}:"),
    ("RateLimiter", "rates", ("1/week",), "got {}: write '10/s'"),
    ("RateLimiter", "rates", ([],), "Give one rate or up to 8"),
    ("RateLimiter", "burst", (0, 1.5, "5"), "burst must be a whole number from 1 .* got {}:"),
    ("RateLimiter", "burst", ([1, 2],), "burst {} has 2 numbers for 1 rate: "),
    ("RateLimiter", "burst", (3650,), "burst {} is more than ten years of 1/d"),
    ("RateLimiter.acquire", "cost", (0, True), "cost must be a whole number from 1 .* got {}:"),
    ("RateLimiter.peek", "cost", (0.5,), "cost must be .* got {}:"),
    ("RateLimiter.reserve", "cost", (3650,), "cost {} is more than ten years of 1/d"),
    ("RateLimiter.reserve", "max_wait", (-1, math.nan, "5"), "max_wait must be .* got {}:"),
    ("RateLimiter.reserve", "call_id", ("",), "call_id must be 1 to 200 .* got {}:"),
    ("RateLimiter.cancel", "call_id", ("a\nb",), "call_id must be 1 to 200 .* got {}:"),
]


@pytest.mark.parametrize(
    ("where", "argument", "values", "message"),
    REFUSED,
    ids=[f"{argument} of {where}, such as {values[0]!r:.9}" for where, argument, values, _ in REFUSED],
)
def test_an_argument_that_cannot_work_is_refused(
    make: Callable[..., Any], redis: Redis, where: str, argument: str, values: tuple[Any, ...], message: str
) -> None:
    kind, _, method = where.partition(".")
    build = getattr(make(kind, **WORKING[kind]), method) if method else lambda **options: make(kind, **options)
    for value in values:
        with pytest.raises(ConfigurationError, match=message.format(re.escape(repr(value)[:200]))):
            build(**{**WORKING.get(where, {}), argument: value})
    assert not redis.keys()
