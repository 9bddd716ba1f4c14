"""Argument names of other locks, semaphores and limiters, each with its fix."""

from __future__ import annotations

__all__ = ["COUNTER", "LOCK", "RATE", "REDLOCK", "SEMAPHORE"]

_LEASE = dict.fromkeys(("ttl", "timeout", "expire", "expires", "lease_time"), "write lease=60")
_RETRIES = ("retry_count", "retry_delay", "retries", "blocking_timeout", "sleep", "blocking")

COUNTER = dict.fromkeys(("initial", "value", "start"), "it begins with 0: write counter.add(5)")
LOCK = {
    **_LEASE,
    **dict.fromkeys(("name", "key", "id", "identity"), "give it to acquire(identity)"),
    **dict.fromkeys(_RETRIES, "write acquire(identity, blocking=True, timeout=5)"),
}
RATE = dict.fromkeys(("rate", "limit", "period", "max", "duration"), "write RateLimiter(client, 'api', '100/m')")
REDLOCK = {**LOCK, **dict.fromkeys(("masters", "servers", "nodes", "client"), "write Redlock([a, b, c])")}
SEMAPHORE = {**_LEASE, **dict.fromkeys(("permits", "size", "value", "count", "max_leases"), "write limit=4")}
