"""The node of a cluster that has the keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from celery_throttle.store.servers.primary import Addresses, moved_to

if TYPE_CHECKING:
    from celery_throttle.core.keys import Keys
    from celery_throttle.core.store_url import Address

_HOPS = 4


class Cluster:
    """Connects to the node that has all keys of one prefix: they share a hash tag, and so a slot.

    Any node tells where that is (MOVED), so one command both finds the node and makes sure that it would run a script
    on the keys: while their slot is on its way to another node it would not, and then connecting fails. The nodes known
    are those of the URL and all that the cluster names, if the user may ask for them.

    Source: https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/

    Args:
        addresses: of some nodes.
        keys: what is to be found.
    """

    def __init__(self, addresses: Iterable[Address], keys: Keys) -> None:
        self._given = tuple(addresses)
        self._nodes = Addresses(self._given)
        self._key = keys.wake  # a channel, and never a key: a slot on its way to another node never has it (ASK)

    def __call__(self, connection: Any) -> None:
        """Connect a connection."""
        try:
            self._nodes.try_each(lambda host, port: self._follow(connection, host, port))
        except RedisConnectionError as error:
            raise RedisConnectionError(f"no node of the cluster has the keys ({error})") from error
        here = (connection.host, connection.port)
        self._nodes = Addresses([here, *_named(connection), *self._given])

    def _follow(self, connection: Any, host: str, port: int) -> None:
        """Connect to this node, or to the one that it names."""
        for _ in range(_HOPS):
            connection.connect_to(host, port)
            try:
                connection.ask("EXISTS", self._key)
            except ResponseError as error:
                moved = moved_to(error)
                if moved is None:
                    raise
                host, port = moved[0] or host, moved[1]
            else:
                return
        raise RedisConnectionError(f"sent from node to node {_HOPS} times")


def _named(connection: Any) -> list[Address]:
    """Return the nodes that this one names, its own shard's first: one of those would be the next primary."""
    try:
        ranges = connection.ask("CLUSTER", "SLOTS")
    except ResponseError:
        return []  # Forbidden; or no cluster, which the worker warns of.
    here = (connection.host, connection.port)
    shards = [[(_host(host) or here[0], port) for host, port, *_ in nodes] for _, _, *nodes in ranges]
    return [address for shard in sorted(shards, key=lambda shard: here not in shard) for address in shard]


def _host(raw: bytes | None) -> str:
    host = (raw or b"").decode()
    return "" if host == "?" else host  # a node without the name that it should be called by
