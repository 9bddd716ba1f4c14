"""The cost of calls to the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis import Redis

from celery_throttle.store.scripts import Call, execute

#: The commands that a script may use that writes nothing.
READS = {
    *("evalsha", "eval", "time", "hget", "hmget", "hexists", "hstrlen", "hscan", "zrange", "zscore", "zcard", "exists"),
    *("zlexcount", "zrangebylex", "zrangebyscore"),
}


@contextmanager
def commands(client: Redis) -> Iterator[dict[str, int]]:
    """Count the commands that the server carries out in the block, also those inside scripts."""
    calls: dict[str, int] = {}
    client.config_resetstat()
    yield calls
    stats: dict[str, Any] = client.info("commandstats")
    counted = {name.removeprefix("cmdstat_"): int(stat["calls"]) for name, stat in stats.items()}
    calls.update({name: count for name, count in counted.items() if not name.startswith(("config", "info"))})


def cost_of_reading(client: Redis, *calls: Call) -> int:
    """Carry out calls that write nothing; return how many commands that takes a server that has their scripts."""
    for call in calls:
        execute(client, call)
    with commands(client) as made:
        for call in calls:
            execute(client, call)
    assert made.keys() <= READS
    assert made["evalsha"] == len(calls)
    return sum(made.values())
