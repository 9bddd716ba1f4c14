"""Buckets: a bucket is a limit, one key of it, or one site of it, with its own permits, rates and line."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["OPEN", "Bucket", "Site"]

_SPLIT = "\x1f"
#: In the store the key of a site begins with this: of any site of a kind (``host``), or of one site (``host=a7``).
OPEN = "\x1d"
_ANY = "any "


class Site(str):
    """The key of a bucket of a limit with ``per``: one site, ``host=a7``, or any site of a kind, ``any host``."""

    __slots__ = ()

    @classmethod
    def of(cls, kind: str, name: str = "") -> Site:
        """Return the site with this name, or any site of the kind."""
        return cls(f"{kind}={name}" if name else f"{_ANY}{kind}")

    @property
    def is_open(self) -> bool:
        """Whether it is any site of a kind."""
        return "=" not in self

    @property
    def kind(self) -> str:
        """The kind of the site: ``host``."""
        return self.partition("=")[0].removeprefix(_ANY)


class Bucket(NamedTuple):
    """The name of a limit, and the value of its key if it has one. Only this class has the form in the store."""

    name: str
    key: str | None = None

    def __str__(self) -> str:
        """Return the bucket for people: ``tenant[acme]``, ``gpu[host=a7]``, ``gpu[any host]``."""
        return self.name if self.key is None else f"{self.name}[{self.key}]"

    @property
    def is_open(self) -> bool:
        """Whether it is any site of a kind, for a task that waits."""
        return isinstance(self.key, Site) and self.key.is_open

    @property
    def kind(self) -> str:
        """The kind of site, "" for a bucket without sites."""
        return self.key.kind if isinstance(self.key, Site) else ""

    @property
    def text(self) -> str:
        """The bucket as the store writes it."""
        if self.key is None:
            return self.name
        return f"{self.name}{_SPLIT}{f'{OPEN}{self.key.removeprefix(_ANY)}' if self.kind else self.key}"

    @classmethod
    def parse(cls, text: str) -> Bucket:
        """Parse `text`."""
        name, split, key = text.partition(_SPLIT)
        if key.startswith(OPEN):
            return cls(name, Site.of(*key.removeprefix(OPEN).split("=", 1)))
        return cls(name, key if split else None)
