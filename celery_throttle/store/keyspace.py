"""Count and delete the keys of one prefix and group on a server."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from celery_throttle.errors import StoreUnavailable
from celery_throttle.store.servers.client import make_client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.core.keys import Keys

__all__ = ["Found", "count_keys", "delete_keys"]

#: Keys that the server scans in one call.
_PAGE = 1000
#: The beginning that distinguishes keys of other groups, prefixes and layouts: ``{shop:eu}:3``.
_BEGINNING = re.compile(rb"\{[^}]*\}(?::[0-9]+)?")
_MOST_OTHERS = 20
#: The keys of a lock and a semaphore of the primitives, which exist while they are held.
_HELD = re.compile(rb"lock:[0-9a-f]{64}|semaphore:leases:.*", re.DOTALL)
#: Wildcards of ``SCAN MATCH``, which are escaped. A prefix has none, but deleting must not rely on that.
_WILD = re.compile(r"([*?\[\]\\^])")


@dataclass
class Found:
    """The keys of one prefix and group on a server.

    Attributes:
        keys: the number of keys.
        size: their size in bytes; None if the server does not report sizes.
        held: the number of held locks and semaphores of the primitives.
        others: the beginnings of other keys that start with the same prefix; twenty at most.
    """

    keys: int = 0
    size: int | None = 0
    held: int = 0
    others: set[str] = field(default_factory=set)


def count_keys(url: str, keys: Keys) -> Found:
    """Count the keys, and add up their sizes.

    Raises:
        StoreUnavailable: the store does not answer, or refuses.
    """
    found = Found()
    with _client(url, keys) as client:
        for ours, others in _pages(client, keys):
            found.keys += len(ours)
            found.held += sum(bool(_HELD.fullmatch(each[len(_space(keys)) :])) for each in ours)
            sizes = _sizes(client, ours)
            found.size = None if found.size is None or sizes is None else found.size + sizes
            beginnings = (_BEGINNING.match(each) for each in others)
            some = {each[0].decode(errors="replace") for each in beginnings if each}
            found.others.update(sorted(some)[: _MOST_OTHERS - len(found.others)])
    return found


def delete_keys(url: str, keys: Keys) -> int:
    """Delete the keys; return their number. The server frees the memory in the background.

    Raises:
        StoreUnavailable: as `count_keys`.
    """
    with _client(url, keys) as client:
        return sum(int(client.unlink(*ours)) for ours, _ in _pages(client, keys) if ours)


@contextmanager
def _client(url: str, keys: Keys) -> Iterator[Any]:
    with make_client(url, keys) as client:
        try:
            yield client
        except NoPermissionError as error:
            raise StoreUnavailable(
                f"the store does not allow its user this: ACL SETUSER ... +scan +unlink +memory|usage, or name a user "
                f"that may, in throttle_url ({error})"
            ) from error
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"the store did not answer, or refused: {error}") from error


def _pages(client: Any, keys: Keys) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yield pages: the keys of this prefix and group, and other keys with the same beginning."""
    # `{shop}` and `{shop:eu}`, and not `{shop2}`.
    match, cursor = "{" + _WILD.sub(r"\\\1", keys.prefix) + "[:}]*", 0
    while True:
        cursor, page = client.scan(cursor, match=match, count=_PAGE)
        ours = [each for each in page if each.startswith(_space(keys))]
        yield ours, [each for each in page if not each.startswith(_space(keys))]
        if not cursor:
            return


def _space(keys: Keys) -> bytes:
    return keys.key("").encode()


def _sizes(client: Any, keys: list[bytes]) -> int | None:
    if not keys:
        return 0
    with client.pipeline(transaction=False) as pipeline:
        for each in keys:
            pipeline.memory_usage(each)
        sizes = pipeline.execute(raise_on_error=False)
    if any(isinstance(each, ResponseError) for each in sizes):
        return None
    return sum(each or 0 for each in sizes)
