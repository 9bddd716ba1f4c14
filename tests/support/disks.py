"""A disk that takes nothing more, for one server."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from redis import Redis
from redis.exceptions import ResponseError

from celery_throttle.embedded import EmbeddedServer
from tests.support.waiting import until

__all__ = ["WRITES_LATER", "unwritable"]

#: Arguments of a server with an append-only file. With ``appendfsync always`` the server ends when it cannot write.
WRITES_LATER = {"persistent": True, "options": {"appendfsync": "everysec"}}


def _wait_for(client: Redis, status: str) -> None:
    def written() -> bool:
        with suppress(ResponseError):
            client.set("written", "")
        found: str = client.info("persistence")["aof_last_write_status"]
        return found == status

    until(written)


@contextmanager
def unwritable(server: EmbeddedServer) -> Iterator[None]:
    """Refuse a server each byte for its append-only file, by the kernel's limit on the size of files."""
    before = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    with Redis.from_url(server.url, decode_responses=True) as client:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (1, before[1]))
        try:
            _wait_for(client, "err")
            yield
        finally:
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, before)
        _wait_for(client, "ok")
        client.delete("written")
