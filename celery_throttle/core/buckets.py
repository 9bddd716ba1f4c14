"""Buckets: a bucket is a limit, or one key of it, with its own permits, rates and line."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Bucket"]

_SPLIT = "\x1f"


class Bucket(NamedTuple):
    """The name of a limit, and the value of its key if it has one. Only this class has the form in the store."""

    name: str
    key: str | None = None

    def __str__(self) -> str:
        """Return the bucket for people: ``tenant[acme]``."""
        return self.name if self.key is None else f"{self.name}[{self.key}]"

    @property
    def text(self) -> str:
        """The bucket as the store writes it."""
        return self.name if self.key is None else f"{self.name}{_SPLIT}{self.key}"

    @classmethod
    def parse(cls, text: str) -> Bucket:
        """Parse `text`."""
        name, split, key = text.partition(_SPLIT)
        return cls(name, key if split else None)
