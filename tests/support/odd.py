"""Put messages into the queue of a broker on Redis that no publisher of ours would write."""

from __future__ import annotations

import base64
import json
import re
import uuid
from typing import Any

from redis import Redis

__all__ = ["LOG_FORMAT", "lines_of_ours", "put", "raw"]

#: For ``worker_log_format``: with the name of the logger, which `lines_of_ours` reads.
LOG_FORMAT = "[%(asctime)s: %(levelname)s/%(processName)s] <%(name)s> %(message)s"


def raw(
    task: str, headers: dict[str, Any] | None = None, *, body: Any = None, properties: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return a message in kombu's form, with these headers, body and properties in place of the usual ones."""
    own = uuid.uuid4().hex
    return {
        "body": base64.b64encode(json.dumps([["odd"], {}, {}] if body is None else body).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"lang": "py", "task": task, "id": own, "root_id": own, "retries": 0, **(headers or {})},
        "properties": {
            "correlation_id": own,
            "delivery_info": {"exchange": "", "routing_key": "celery"},
            "body_encoding": "base64",
            "delivery_tag": own,
            **(properties or {}),
        },
    }


def put(url: str, *messages: dict[str, Any], queue: str = "celery") -> None:
    """Put messages into a queue, all at once, the first first."""
    with Redis.from_url(url) as client:
        client.lpush(queue, *map(json.dumps, messages))


def lines_of_ours(log: str) -> list[str]:
    """Return the lines that the library wrote to a log in this format, above INFO, with those of tracebacks."""
    found, ours = [], False
    for line in log.splitlines():
        if start := re.match(r"\[[^]]*: ([A-Z]+)/[^]]*\] <([^>]*)>", line):
            ours = start[1] != "INFO" and start[2].startswith("celery_throttle")
        if ours:
            found.append(line)
    return found
