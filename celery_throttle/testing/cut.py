"""Cut the connections of this process to the store, as a lost network does."""

from __future__ import annotations

import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from unittest import mock
from weakref import WeakSet

from celery_throttle.store.servers import client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import ConnectionPool

__all__ = ["Cut"]


class Cut:
    """Cuts the connections that were made while it is `patched`.

    Attributes:
        is_active: whether they are cut now.
    """

    def __init__(self) -> None:
        self.is_active = False
        self._sockets: WeakSet[Any] = WeakSet()

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Record all connections to a store that this process makes in the time of the block."""
        make = client._pool_of  # noqa: SLF001

        def made(url: str, **more: Any) -> ConnectionPool:
            pool = make(url, **more)
            pool.connection_class = self._cuttable(pool.connection_class)
            return pool

        with mock.patch.object(client, "_pool_of", made):
            yield

    @contextmanager
    def active(self) -> Iterator[None]:
        """Cut the connections, and refuse others, in the time of the block."""
        self.is_active = True
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        try:
            yield
        finally:
            self.is_active = False

    def _cuttable(self, base: Any) -> Any:
        cut = self

        class Cuttable(base):  # type: ignore[misc]
            def _connect(self) -> Any:
                if cut.is_active:
                    raise ConnectionRefusedError("the test has cut the store off")
                made = super()._connect()
                cut._sockets.add(made)
                return made

        return Cuttable
