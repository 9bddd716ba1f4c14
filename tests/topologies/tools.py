"""What tests of several kinds of store need."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from celery_throttle.embedded import EmbeddedServer


def has_waitaof(server: EmbeddedServer) -> bool:
    """Whether it has the command; Redis has it from 7.2 on."""
    with Redis.from_url(server.url) as client:
        try:
            client.execute_command("WAITAOF", 0, 0, 1)
        except ResponseError as error:
            return "unknown command" not in str(error)
    return True


def skip_without_waitaof(server: EmbeddedServer) -> None:
    if not has_waitaof(server):
        pytest.skip("the server has no WAITAOF")


def reap(app: Any) -> int:
    """Run the beat task here."""
    return int(app.app.tasks["celery_throttle.reap"]())
