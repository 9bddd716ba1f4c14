"""Sites: the hosts, workers and values of tags on each of which a limit has permits of its own (``per``).

A task that waits needs a permit of any site: its bucket is open. A worker binds the needs of its tasks to its sites.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from celery_throttle.core.buckets import OPEN
from celery_throttle.core.checks import text
from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["HOST", "WORKER", "Sites", "check_kind", "read_tags"]

#: The kinds of sites that need no tag.
HOST, WORKER = "host", "worker"
_KIND = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,49}")


class Sites:
    """The sites of one worker, or of one program.

    Args:
        names: the name of the site of each kind.
        size: returns the number of slots of the worker's pool; None where no limit is a share of it.
    """

    def __init__(self, names: Mapping[str, str], size: Callable[[], int] | None = None) -> None:
        self._names, self._size = dict(names), size
        self._row = ',"sites":' + json.dumps({f"{OPEN}{kind}": f"{OPEN}{kind}={name}" for kind, name in names.items()})

    @property
    def row(self) -> str:
        """The part of a call that has the sites, as exchange.lua reads it."""
        return self._row if self._size is None else f'{self._row},"size":{self._size()}'

    @property
    def unsized(self) -> Sites:
        """The same sites for an app without a limit that is a share of a pool."""
        return Sites(self._names)

    def bind(self, bucket: str) -> str:
        """Return a bucket, bound to the site here if it is open and there is one."""
        _, mark, kind = bucket.partition(OPEN)
        return f"{bucket}={self._names[kind]}" if mark and kind in self._names else bucket

    def has(self, site: str) -> bool:
        """Return whether a hint about a site (``host=a7``), or about a kind of sites, is for here."""
        kind, _, name = site.partition("=")
        return kind in self._names and name in ("", self._names[kind])


def check_kind(what: str, kind: object) -> None:
    """Check a value of ``per``.

    Raises:
        ConfigurationError: it cannot be the name of a tag.
    """
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        raise ConfigurationError(
            f"{what} must be 'host', 'worker' or the name of a tag, got {kind!r}: write per='host'"
        )


def read_tags(what: str, given: object) -> dict[str, str]:
    """Return the tags of a worker, from a dict or from text such as ``gpu_box=a7,rack=3``.

    Raises:
        ConfigurationError: they cannot be read, or a name or value cannot work.
    """
    pairs: Any = given
    example = "{'gpu_box': 'a7'}"
    if isinstance(given, str):
        example = "gpu_box=a7"
        parts = [each.partition("=") for each in given.split(",") if each.strip()]
        pairs = {name.strip(): value.strip() for name, _, value in parts}
    if not isinstance(pairs, dict):
        raise ConfigurationError(f"{what} must be a dict of tags, got {given!r}: write {example}")
    for kind, name in pairs.items():
        if not isinstance(kind, str) or not _KIND.fullmatch(kind) or kind == WORKER:
            raise ConfigurationError(f"{what} has the tag {kind!r}, which cannot be a name: write {example}")
        text(f"{what}[{kind!r}]", name, usual="a7")
    return dict(pairs)
