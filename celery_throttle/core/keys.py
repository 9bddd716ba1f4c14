"""Where things are in Redis: a fixed set of keys under one hash tag."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Keys"]

#: Grows when the layout of keys or records changes, so that two versions of the library never mix.
LAYOUT = 1

_NAMES = ("limits", "used", "leases", "records", "parked", "messages", "meta", "locks", "lock_ends")


@dataclass(frozen=True)
class Keys:
    """The keys of one prefix and group. The hash tag keeps them on one shard, so one script may use them all."""

    prefix: str
    group: str = ""

    @property
    def all(self) -> tuple[str, ...]:
        """Every key, in the order of KEYS in the scripts, where the channel of the hints comes after them."""
        return tuple(self._key(name) for name in _NAMES)

    @property
    def records(self) -> str:
        """Who holds, who is parked."""
        return self._key("records")

    @property
    def messages(self) -> str:
        """The messages that only the store has."""
        return self._key("messages")

    @property
    def wake(self) -> str:
        """The channel on which hints are published."""
        return self._key("wake")

    def _key(self, name: str) -> str:
        tag = f"{self.prefix}:{self.group}" if self.group else self.prefix
        return f"{{{tag}}}:{LAYOUT}:{name}"
