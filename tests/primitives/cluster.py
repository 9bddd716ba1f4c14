"""Three independent servers, and the state of a lock on each of them."""

from __future__ import annotations

import secrets
from typing import Any

from redis import Redis

from celery_throttle.embedded import EmbeddedServer
from celery_throttle.primitives import IdentityLock, Redlock

__all__ = ["NODE_TIMEOUT", "PATIENCE", "Cluster"]

#: Seconds for servers that do not answer in a test; where they do, no test has to wait for so long as `PATIENCE`.
NODE_TIMEOUT = 1.0
PATIENCE = 20.0


class Cluster:
    """Independent servers, and the state on each."""

    def __init__(
        self, servers: list[EmbeddedServer], clients: list[Redis], views: list[Redis], hasty: list[Redis]
    ) -> None:
        self.servers, self.clients, self.views, self.hasty = servers, clients, views, hasty
        #: Calls without a waiting caller may still come after a test.
        self.prefix = secrets.token_hex(4)

    def redlock(self, **options: Any) -> Redlock:
        """Return a Redlock with threads of its own."""
        return Redlock(self.clients, prefix=self.prefix, **{"node_timeout": PATIENCE, **options})

    def owners(self) -> list[str | None]:
        """Return the owner of the lock on each server."""
        infos = [self.each(index).locked_by("a") for index in range(3)]
        return [info.owner if info else None for info in infos]

    def each(self, index: int) -> IdentityLock:
        """Return the locks of one server alone."""
        return IdentityLock(self.views[index], prefix=self.prefix)

    def end(self) -> None:
        """Let the lease of the lock be over on all servers."""
        for index, view in enumerate(self.views):
            view.delete(self.each(index)._calls.key("a"))

    def asked(self) -> list[bool]:
        """Whether each server was ever asked for a lock, and had it to give."""
        return [bool(view.exists(f"{{{self.prefix}}}:2:lock:fence")) for view in self.views]
