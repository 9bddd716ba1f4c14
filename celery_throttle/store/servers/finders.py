"""Find the server that has the keys: the primary that sentinels name, or the node of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, ResponseError

from celery_throttle.store.servers.primary import Addresses, moved_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from celery_throttle.core.keys import Keys
    from celery_throttle.core.store_url import Address

__all__ = ["Cluster", "Sentinels"]

_HOPS = 4


class Sentinels:
    """Connects to the first server that a sentinel names, and that itself says that it is a primary.

    Source: https://redis.io/docs/latest/develop/reference/sentinel-clients/

    Warning:
        Sentinels that are cut off from the others still name the old primary, and a client on their side of the network
        goes on with it; what it writes there is lost. ``min-replicas-to-write 1`` on the servers makes it refuse.

    Args:
        addresses: of the sentinels.
        master_name: what they call the primary.
        make: makes an unconnected connection to a sentinel.
    """

    def __init__(self, addresses: Iterable[Address], master_name: str, make: Callable[[str, int], Any]) -> None:
        self._sentinels, self._name, self._make = Addresses(addresses), master_name, make

    def __call__(self, connection: Any) -> None:
        """Connect a connection."""
        try:
            self._sentinels.try_each(lambda host, port: self._follow(connection, host, port))
        except RedisConnectionError as error:
            raise RedisConnectionError(
                f"no sentinel leads to a primary named {self._name!r} ({error}); if this lasts, check throttle_url, or "
                f"the broker's URL, and master_name"
            ) from error

    def _follow(self, connection: Any, host: str, port: int) -> None:
        """Connect to the server that this sentinel names."""
        host, port = self._named(host, port)
        connection.connect_to(host, port)
        role = _role(connection)
        if role not in ("", "master"):
            # A sentinel that did not yet hear of the failover, or one that is ahead of it.
            raise RedisConnectionError(f"{host}:{port} is no primary yet, or no more: its role is {role}")

    def _named(self, host: str, port: int) -> Address:
        sentinel = self._make(host, port)
        try:
            sentinel.connect()
            sentinel.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name)
            reply = sentinel.read_response()
        finally:
            sentinel.disconnect()
        if not reply:
            raise RedisConnectionError("it does not know that name")
        return reply[0].decode(), int(reply[1])


def _role(connection: Any) -> str:
    try:
        return str(connection.ask("ROLE")[0].decode())
    except NoPermissionError:
        return ""  # a replica will answer READONLY


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
        self._nodes = Addresses([here, *_nodes_named_by(connection), *self._given])

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


def _nodes_named_by(connection: Any) -> list[Address]:
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
