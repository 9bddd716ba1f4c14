"""Declare the limits in the store that a process takes permits of."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_throttle.clients import StoreClient

__all__ = ["Declarations"]


class Declarations:
    """The limits of one group, declared once, and again after the store was emptied.

    Args:
        client: of the group.

    Attributes:
        birth: when the data of the store began to which they were declared; "" before the first time.
    """

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._guard = threading.Lock()
        self._limits: dict[str, str] = {}
        self._declared: set[str] = set()
        self.birth = ""

    def add(self, name: str, declared: str) -> None:
        """Add a limit, to be declared if the store knows nothing of it."""
        with self._guard:
            self._limits.setdefault(name, declared)

    def forget(self) -> None:
        """Declare all of them again: the store was emptied."""
        self._declared.clear()

    def send(self) -> None:
        """Declare those that are not declared yet.

        Raises:
            StoreUnavailable: the store did not answer, or refused.
        """
        with self._guard:
            undeclared = {name: text for name, text in self._limits.items() if name not in self._declared}
        if not undeclared:
            return
        pages = self._client.store.declarations(self.birth, undeclared.items(), keeps=True)
        births = {self._client.ask(page)[0] for page in pages}
        if len(births) > 1:  # the store was emptied between two of them
            self.send()
            return
        self.birth = births.pop().decode()
        self._declared |= undeclared.keys()
