"""The keys in Redis: a fixed set under one hash tag."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LAYOUT", "Keys"]

#: The version of the layout of keys and records. It is a part of each key, so two versions never share data.
LAYOUT = 3

#: In the order of KEYS in ``begin.lua``, where the channel for hints follows them.
_NAMES = (
    *("limits", "overrides", "used", "waiting", "leases", "records", "messages", "lines", "lanes", "heads", "ready"),
    *("due", "locks", "rates", "turns", "aside", "workers", "meta", "ends", "audit", "oldest", "sums"),
)


@dataclass(frozen=True)
class Keys:
    """The keys of one prefix and group. The hash tag keeps them on one shard, so that one script can use them all."""

    prefix: str
    group: str = ""
    layout: int = LAYOUT

    @property
    def all(self) -> tuple[str, ...]:
        """All keys, in the order of `names`."""
        return tuple(map(self.key, _NAMES))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all keys."""
        return _NAMES

    def key(self, name: str) -> str:
        """Return one key by its name in ``begin.lua``."""
        return f"{self._tag}:{self.layout}:{name}"

    @property
    def pattern(self) -> str:
        """The pattern of a Redis user's rights: the keys of every layout, so that data of another one is found."""
        return f"{self._tag}:*"

    @property
    def _tag(self) -> str:
        return f"{{{self.prefix}:{self.group}}}" if self.group else f"{{{self.prefix}}}"

    def ring(self, name: str, limit: str) -> str:
        """Return the key of a ring of counters of a limit; this key expires."""
        return self.key(f"{name}:{limit}")

    @property
    def wake(self) -> str:
        """The channel on which hints are published."""
        return self.key("wake")
