"""A Redis Cluster of three primaries, each with a replica, as processes on 127.0.0.1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from redis import Redis
from redis.crc import key_slot
from redis.exceptions import RedisError

from celery_throttle.core.keys import Keys
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.errors import ThrottleError
from tests.support.ports import free_port
from tests.support.sentinels import wait_replicated
from tests.support.waiting import until

PRIMARIES = 3
SLOTS = 16384


class Cluster:
    """The nodes: first the primaries of the beginning, then as many replicas, in the same order."""

    def __init__(self, nodes: list[EmbeddedServer]) -> None:
        self.nodes = nodes

    @property
    def url(self) -> str:
        """With two addresses: one without a server, and the primary; the others have to be learned."""
        return f"redis+cluster://127.0.0.1:1,127.0.0.1:{self.primary.port}"

    @property
    def primary(self) -> EmbeddedServer:
        """The node that has the keys now, by its shard."""
        return until(lambda: [node for node in self._shard() if _is_primary(node)])[0]

    def wait_replicated(self) -> None:
        """Wait until the replica of our shard has all that the primary has."""
        wait_replicated(self.primary, self.replica)

    def hand_over(self) -> None:
        """Make the replica of our shard its primary, as an operator does: nothing is lost."""
        replica = self.replica
        assert ask(replica, "CLUSTER", "FAILOVER") == b"OK"
        until(lambda: _is_primary(replica))
        until(lambda: self.replica is not replica)

    @property
    def replica(self) -> EmbeddedServer:
        """The other node of our shard."""
        primary = self.primary
        return next(node for node in self._shard() if node is not primary)

    def _shard(self) -> list[EmbeddedServer]:
        first = self.nodes[slot_of("throttle") * PRIMARIES // SLOTS]
        return [first, self.nodes[self.nodes.index(first) + PRIMARIES]]


def _is_primary(node: EmbeddedServer) -> bool:
    return node.running and ask(node, "ROLE")[0] == b"master"


def slot_of(prefix: str) -> int:
    return int(key_slot(Keys(prefix).wake.encode()))


def ask(node: EmbeddedServer, *command: Any) -> Any:
    """Return the raw reply; None if it refuses."""
    with Redis(port=node.port, protocol=2, socket_timeout=5) as client:
        client.response_callbacks.clear()
        try:
            return client.execute_command(*command)
        except RedisError:
            return None


def node_id(node: EmbeddedServer) -> str:
    return str(ask(node, "CLUSTER", "MYID").decode())


@contextmanager
def cluster(new_server: Callable[..., EmbeddedServer], *, node_timeout: int = 15_000) -> Iterator[Cluster]:
    """Yield a cluster that is up; by default one too patient to fail over.

    Args:
        new_server: makes a server that is not started.
        node_timeout: milliseconds of silence until the others say that a node has failed.
    """
    with ExitStack() as stack:
        started = [stack.enter_context(_node(new_server)) for _ in range(2 * PRIMARIES)]
        nodes, buses = [node for node, _ in started], [bus for _, bus in started]
        pairs = list(zip(nodes[:PRIMARIES], nodes[PRIMARIES:], strict=True))
        for number, node in enumerate(nodes):
            ask(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            for other, bus in zip(nodes[:number], buses, strict=False):
                ask(node, "CLUSTER", "MEET", "127.0.0.1", other.port, bus)
        for number, (primary, _) in enumerate(pairs):
            first, end = (-(-SLOTS * part // PRIMARIES) for part in (number, number + 1))
            ask(primary, "CLUSTER", "ADDSLOTS", *range(first, end))
        until(lambda: all(_known(node) == len(nodes) for node in nodes))
        for primary, replica in pairs:
            name = node_id(primary)
            until(lambda: ask(replica, "CLUSTER", "REPLICATE", name))  # noqa: B023 - called at once
        for primary, replica in pairs:
            wait_replicated(primary, replica)
        until(lambda: all(_whole(node) for node in nodes))
        for node in nodes:
            ask(node, "CONFIG", "SET", "cluster-node-timeout", node_timeout)
        yield Cluster(nodes)


@contextmanager
def _node(new_server: Callable[..., EmbeddedServer]) -> Iterator[tuple[EmbeddedServer, int]]:
    """Yield a node and the port of its bus; another takes a port that was free now and then."""
    for left in reversed(range(3)):
        bus = free_port()
        node = new_server(options=_options(bus))
        try:
            node.start()
        except ThrottleError:
            if not left:
                raise
            continue
        with node:
            yield node, bus
        return


def _options(bus: int) -> dict[str, str | int]:
    return {
        "cluster-enabled": "yes",
        "cluster-port": bus,
        "cluster-config-file": "{dir}/nodes.conf",
        "cluster-node-timeout": 1000,  # nodes talk to each other the more often
        "cluster-replica-validity-factor": 0,
        "repl-diskless-sync-delay": 0,
        "repl-ping-replica-period": 1,
    }


def _known(node: EmbeddedServer) -> int:
    nodes = ask(node, "CLUSTER", "NODES").decode().splitlines()
    return sum("handshake" not in line for line in nodes)


def _whole(node: EmbeddedServer) -> bool:
    if b"cluster_state:ok" not in ask(node, "CLUSTER", "INFO"):
        return False
    # Start, end, primary, replica: each node has the replicas too.
    return [len(found) for found in ask(node, "CLUSTER", "SLOTS")] == [4] * PRIMARIES
