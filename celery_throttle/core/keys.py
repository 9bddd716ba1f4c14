"""Where things are in Redis: a fixed set of keys under one hash tag."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Keys"]

#: Grows when the layout of keys or records changes, so that two versions of the library never mix.
LAYOUT = 2

_NAMES = (
    *(
        "limits",
        "overrides",
        "used",
        "waiting",
        "leases",
        "records",
        "messages",
        "lines",
        "lanes",
        "heads",
        "ready",
        "due",
    ),
    *("locks", "rates", "turns", "aside", "workers", "meta", "ends"),
    *("audit", "oldest", "sums"),
)


@dataclass(frozen=True)
class Keys:
    """The keys of one prefix and group. The hash tag keeps them on one shard, so one script may use them all."""

    prefix: str
    group: str = ""

    @property
    def all(self) -> tuple[str, ...]:
        """Every key, in the order of KEYS in ``begin.lua``, where the channel of the hints comes after them."""
        return tuple(self._key(name) for name in _NAMES)

    def key(self, name: str) -> str:
        """One key, by the name that ``begin.lua`` has for it."""
        return self._key(name)

    def ring(self, name: str, limit: str) -> str:
        """The ring of this name of what is counted of a limit; it ends by itself."""
        return self._key(f"{name}:{limit}")

    @property
    def wake(self) -> str:
        """The channel on which hints are published."""
        return self._key("wake")

    def _key(self, name: str) -> str:
        tag = f"{self.prefix}:{self.group}" if self.group else self.prefix
        return f"{{{tag}}}:{LAYOUT}:{name}"
