"""Declare the limits in the store that a process takes permits of."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_throttle.clients import StoreClient

__all__ = ["Declarations"]


class Declarations:
    """Declares the limits of one group once, and again after the store was emptied.

    Attributes:
        birth: when the store's data began, as of the last declaration; "" before the first.
    """

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._guard = threading.Lock()
        self._limits: dict[str, str] = {}
        self._declared: set[str] = set()
        self.birth = ""

    def add(self, name: str, declared: str) -> None:
        """Add a limit that the next `send` declares."""
        with self._guard:
            self._limits.setdefault(name, declared)

    def forget(self) -> None:
        """Have the next `send` declare all limits again, because the store was emptied."""
        self._declared.clear()

    def send(self) -> None:
        """Declare the limits that are not declared yet.

        Raises:
            StoreUnavailable: the store did not answer, or refused.
        """
        with self._guard:
            undeclared = {name: text for name, text in self._limits.items() if name not in self._declared}
        if not undeclared:
            return
        pages = self._client.store.declarations(self.birth, undeclared.items(), keeps=True)
        births = {self._client.ask(page)[0] for page in pages}
        if len(births) > 1:  # the store was emptied between two pages
            self.send()
            return
        self.birth = births.pop().decode()
        self._declared |= undeclared.keys()
