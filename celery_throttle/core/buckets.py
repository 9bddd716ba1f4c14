"""Buckets: a bucket is a limit, one key of it, or one site of it, with its own permits, rates and line."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["OPEN", "Bucket"]

_SPLIT = "\x1f"
#: The key of a site begins with this: of any site of a kind (``host``), or of one site (``host=a7``).
OPEN = "\x1d"


class Bucket(NamedTuple):
    """The name of a limit, and the value of its key if it has one. Only this class has the form in the store."""

    name: str
    key: str | None = None

    def __str__(self) -> str:
        """Return the bucket for people: ``tenant[acme]``, ``gpu[host=a7]``, ``gpu[any host]``."""
        return self.name if self.key is None else f"{self.name}[{self.label}]"

    @property
    def label(self) -> str:
        """The key for people: ``acme``, ``host=a7``, ``any host``; "" without a key."""
        return f"{'any ' if self.is_open else ''}{(self.key or '').removeprefix(OPEN)}"

    @property
    def is_site(self) -> bool:
        """Whether it is one site, or any site, of a limit with ``per``."""
        return self.key is not None and self.key.startswith(OPEN)

    @property
    def is_open(self) -> bool:
        """Whether it is any site of a kind, for a task that waits."""
        return self.is_site and "=" not in (self.key or "")

    @property
    def kind(self) -> str:
        """The kind of site, "" for a bucket without sites."""
        return (self.key or "").removeprefix(OPEN).partition("=")[0] if self.is_site else ""

    @property
    def text(self) -> str:
        """The bucket as the store writes it."""
        return self.name if self.key is None else f"{self.name}{_SPLIT}{self.key}"

    @classmethod
    def parse(cls, text: str) -> Bucket:
        """Parse `text`."""
        name, split, key = text.partition(_SPLIT)
        return cls(name, key if split else None)
