"""The subscribers to the hints of locks and semaphores."""

from __future__ import annotations

from redis import Redis

__all__ = ["channels", "listening"]


def channels(client: Redis) -> list[bytes | str]:
    """Return the channels with a subscriber, except those of results and wake-ups."""
    return [each for kind in ("lock", "semaphore") for each in client.pubsub_channels(f"{{throttle}}:2:{kind}:*")]


def listening(client: Redis) -> int:
    """How many listen there."""
    return sum(count for _, count in client.pubsub_numsub(*channels(client)))
