"""Connections to Redis from one URL: a client for threads, single connections for event loops."""

from __future__ import annotations

import re
from typing import Any

from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

__all__ = ["connection_factory", "make_client"]

#: Seconds without an answer after which the store counts as unreachable.
TIMEOUT = 1.0


def _pool(url: str) -> ConnectionPool:
    # Retrying is ours: only we know which call may be sent again, and a worker must not wait ten retries long.
    options: dict[str, Any] = {
        "socket_timeout": TIMEOUT,
        "socket_connect_timeout": TIMEOUT,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "health_check_interval": 0,
    }
    url = _redis_url(url)
    if not url.startswith("unix://"):
        options["socket_keepalive"] = True
    return ConnectionPool.from_url(url, **options)


def _redis_url(url: str) -> str:
    """Translate what only Celery and kombu understand."""
    if url.startswith("redis+socket://"):
        path, _, query = url.removeprefix("redis+socket://").partition("?")
        url = f"unix://{path}?{query.replace('virtual_host=', 'db=')}".rstrip("?")
    return re.sub(r"(ssl_cert_reqs=)CERT_(\w+)", lambda found: found[1] + found[2].lower(), url)


def make_client(url: str) -> Redis:
    """Return a client that waits `TIMEOUT` seconds at most and never retries by itself."""
    return Redis(connection_pool=_pool(url))


class connection_factory:  # noqa: N801  # a callable that keeps its parsed URL
    """Makes single, unconnected connections to one URL."""

    def __init__(self, url: str) -> None:
        self._pool = _pool(url)

    def __call__(self) -> Any:
        """Return a new connection; it is not connected yet."""
        # Not the pool's own way, which counts: a worker that has connected again often enough would get no more.
        return self._pool.connection_class(**self._pool.connection_kwargs)
