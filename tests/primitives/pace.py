"""Time in the test's own hands: ended leases, the rate of renewals and of looks; and the callers that wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from celery_throttle.primitives.lease import Lease

__all__ = ["channels", "end_here", "end_permits", "listening", "look_often", "renew_often", "renewed_since"]

BASE = "celery_throttle.primitives.lease"


def end_here(held: Lease) -> None:
    """Let a lease be over by its holder's clock."""
    held._deadline = time.monotonic()


def end_permits(client: Redis, name: str) -> None:
    """Let the leases of all permits of a semaphore be over by the store's clock."""
    key = f"{{throttle}}:3:semaphore:leases:{name}"
    permits: Any = client.zrange(key, 0, -1)
    client.zadd(key, dict.fromkeys(permits, 1), xx=True)


def renew_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew a lease of 30 seconds ten times a second, so that a machine which is busy for a moment loses none."""
    monkeypatch.setattr(f"{BASE}.RENEWALS", 300)


def renewed_since(held: Lease) -> Callable[[], bool]:
    """Return a check whether a renewal has begun and ended since now: the first that ends may have begun before."""
    seen = [held._deadline]

    def told() -> bool:
        if held._deadline > seen[-1]:
            seen.append(held._deadline)
        return len(seen) > 2

    return told


def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waiting callers look by themselves five times a second."""
    monkeypatch.setattr(f"{BASE}._LOOK_AGAIN", 0.2)


def channels(client: Redis) -> list[bytes | str]:
    """Return the channels with a subscriber, except those of results and wake-ups."""
    return [each for kind in ("lock", "semaphore") for each in client.pubsub_channels(f"{{throttle}}:3:{kind}:*")]


def listening(client: Redis) -> int:
    """Return the number of the subscribers."""
    return sum(count for _, count in client.pubsub_numsub(*channels(client)))
