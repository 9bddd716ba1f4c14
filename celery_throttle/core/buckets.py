"""What permits, rates and a line belong to: a limit, or one key of it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Bucket"]

_SPLIT = "\x1f"


class Bucket(NamedTuple):
    """A limit's name, and the value of its key if it has one. How that is written in the store is known here alone."""

    name: str
    key: str | None = None

    def __str__(self) -> str:
        """As people read it: ``tenant[acme]``."""
        return self.name if self.key is None else f"{self.name}[{self.key}]"

    @property
    def text(self) -> str:
        """As the store has it."""
        return self.name if self.key is None else f"{self.name}{_SPLIT}{self.key}"

    @classmethod
    def parse(cls, text: str) -> Bucket:
        """Read what the store has."""
        name, split, key = text.partition(_SPLIT)
        return cls(name, key if split else None)
