"""What a worker has for one group of limits: a ledger, connections for calls and for hints, a client for leases."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from celery_throttle.store.scripts import Store
from celery_throttle.store.servers.client import connection_factory, make_client
from celery_throttle.worker.link import Link, Listener

if TYPE_CHECKING:
    from celery_throttle.core.settings import Settings
    from celery_throttle.worker.gate import Gate
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["Group"]


class Group:
    """One place in Redis that the limits of a group share; in a cluster each may be on another node.

    Args:
        name: of the group.
        gate: hears of it; its loop turns the connections.
        timekeeper: for connecting again.
        settings: of the app.
        worker_id: begins every nonce of this worker.

    Attributes:
        ledger: sends what the gate wants.
        client: for calls of other threads.
    """

    def __init__(self, name: str, gate: Gate, timekeeper: Timekeeper, settings: Settings, worker_id: str) -> None:
        keys = settings.keys(name)
        make: Any = connection_factory(settings.url, keys)
        self._gate = gate
        self.ledger = ledger = gate.add(name, Store(keys, settings.lease), worker_id)
        self._link = ledger.link = Link(
            gate.loop,
            timekeeper,
            make,
            settings.lease,
            partial(gate.store_up, ledger),
            self._lost,
            ledger.outage.unreachable,
        )
        hint = partial(gate.hint, ledger=ledger)
        self._listener = Listener(gate.loop, timekeeper, make, settings.lease, keys.wake, hint)
        self.client = make_client(settings.url, keys)

    @property
    def busy(self) -> bool:
        """Whether the store still has something to say."""
        return self._link.up and not self.ledger.idle

    def connect(self) -> None:
        """Begin."""
        self._link.connect()
        self._listener.connect()

    def _lost(self, error: Exception) -> None:
        self._gate.store_lost(error, self.ledger)
        # It hears nothing of a server that is frozen or cut off, and the next one may be another.
        self._listener.start_over(error)

    def close(self) -> None:
        """End all connections."""
        self._link.close()
        self._listener.close()
        self.client.close()
