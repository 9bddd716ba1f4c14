"""Connections to Redis from one URL: a client for threads, single connections for event loops."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry

from celery_throttle.core.store_url import StoreUrl
from celery_throttle.errors import ConfigurationError
from celery_throttle.store.servers.finders import Cluster, Sentinels
from celery_throttle.store.servers.primary import SeekingConnection, SeekingSSLConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.core.keys import Keys

__all__ = ["TIMEOUT", "connection_factory", "make_client"]

#: Seconds without an answer after which a server counts as unreachable.
TIMEOUT = 1.0
#: Options of TCP, as far as the system has them. A quiet connection is asked after a minute whether it lives, as NATs
#: forget those that they hear nothing of, and is dead a minute later. NOTSENT_LOWAT: bytes that the kernel takes before
#: the network does, so that a sender sees that a large call moves.
_TCP = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4, "TCP_NOTSENT_LOWAT": 1 << 17}
#: How replies are read, whatever the same URL says to other clients.
_REPLIES = {"protocol": 2, "decode_responses": False}


def make_client(url: str, keys: Keys | None = None) -> Redis:
    """Return a client that waits `TIMEOUT` seconds at most and never retries by itself.

    With sentinels or a cluster, each server asked on the way to the primary may take as long.

    Args:
        url: see `StoreUrl`.
        keys: what the client is for; a cluster has them on one of its nodes.

    Raises:
        ConfigurationError: the URL cannot work.
    """
    return Redis(connection_pool=_pool(url, keys))


def connection_factory(url: str, keys: Keys | None = None) -> Callable[[], Any]:
    """Return a function that makes unconnected connections to one URL; arguments and errors as for `make_client`."""
    pool = _pool(url, keys)
    # Not the pool's own way, which counts: a worker that has connected again often enough would get no more.
    return lambda: pool.connection_class(**pool.connection_kwargs)


def _pool(url: str, keys: Keys | None) -> ConnectionPool:
    store = StoreUrl.parse(url)
    if store.kind == "server":
        return _pool_of(store.url)
    secure = store.url.startswith("rediss://")
    connection_class = SeekingSSLConnection if secure else SeekingConnection
    return _pool_of(store.url, connection_class=connection_class, seek=_seek(store, keys))


def _seek(store: StoreUrl, keys: Keys | None) -> Cluster | Sentinels:
    if store.kind == "cluster":
        if keys is None:
            raise ConfigurationError("Which node of a cluster is meant is told by the keys, and there are none")
        return Cluster(store.nodes, keys)
    pool = _pool_of(store.sentinel_url)

    def make(host: str, port: int) -> Any:
        return pool.connection_class(**pool.connection_kwargs | {"host": host, "port": port})

    return Sentinels(store.nodes, store.master_name, make)


def _pool_of(url: str, **more: Any) -> ConnectionPool:
    # Retrying is ours: only we know which call may be sent again, and a worker must not wait ten retries long.
    options: dict[str, Any] = {
        "socket_timeout": TIMEOUT,
        "socket_connect_timeout": TIMEOUT,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": 0,
    }
    if not url.startswith("unix://"):
        options["socket_keepalive"] = True
        options["socket_keepalive_options"] = {
            getattr(socket, name): value for name, value in _TCP.items() if hasattr(socket, name)
        }
    try:
        pool = ConnectionPool(**options | parse_url(url) | _REPLIES | more)  # type: ignore[no-untyped-call]
        pool.connection_class(**pool.connection_kwargs)  # not connected: only to see that it takes these options
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"throttle_url has an option that redis-py does not take: {error}") from error
    return pool
