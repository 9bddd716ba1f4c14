"""The cost of a call to the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis import Redis


@contextmanager
def commands(client: Redis) -> Iterator[dict[str, int]]:
    """Count the commands that the server carries out in the block, also those inside scripts."""
    calls: dict[str, int] = {}
    client.config_resetstat()
    yield calls
    stats: dict[str, Any] = client.info("commandstats")
    counted = {name.removeprefix("cmdstat_"): int(stat["calls"]) for name, stat in stats.items()}
    calls.update({name: count for name, count in counted.items() if not name.startswith(("config", "info"))})
