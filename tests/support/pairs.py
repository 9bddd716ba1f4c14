"""A primary and its replica behind one address, which moves to the replica when the primary is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from redis import Redis

from celery_throttle.embedded import EmbeddedServer
from tests.support.relay import Relay
from tests.support.sentinels import wait_replicated

__all__ = ["Pair", "pair"]


class Pair:
    """Fails over on request, at once.

    Attributes:
        primary: the server that has the address.
        replica: the other one.
        relay: the address.
    """

    def __init__(self, primary: EmbeddedServer, replica: EmbeddedServer, relay: Relay) -> None:
        self.primary, self.replica, self.relay = primary, replica, relay
        self._frozen = False

    @property
    def url(self) -> str:
        return self.relay.url

    def cut_off_replica(self) -> None:
        """Freeze it and end its connection: it never gets the later writes of the primary."""
        self.replica.freeze()
        self._frozen = True
        with Redis(port=self.primary.port) as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")

    def thaw_replica(self) -> None:
        if self._frozen:
            self.replica.thaw()
        self._frozen = False

    def fail_over(self) -> None:
        """SIGKILL the primary; the replica is the primary from now on, with its data."""
        self.primary.kill()
        self.primary, self.replica = self.replica, self.primary
        if self._frozen:
            self.primary.thaw()
        self._frozen = False
        with Redis(port=self.primary.port) as client:
            client.execute_command("REPLICAOF", "NO", "ONE")
        self.relay.lead_to(self.primary.port)


@contextmanager
def pair(new_server: Callable[..., EmbeddedServer]) -> Iterator[Pair]:
    quick = {"repl-diskless-sync-delay": 0, "repl-ping-replica-period": 1}
    with ExitStack() as stack:
        primary = stack.enter_context(new_server(options=quick))
        replica = stack.enter_context(new_server(options=quick | {"replicaof": f"127.0.0.1 {primary.port}"}))
        wait_replicated(primary, replica)
        relay = stack.enter_context(Relay(primary.port))
        yield Pair(primary, replica, relay)
