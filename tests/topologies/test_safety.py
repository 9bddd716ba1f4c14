"""Warnings about a store that cannot keep parked tasks safe enough: at a worker's start, by doctor."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from celery_throttle.core.durability import Durability
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.store.servers.safety import safety_findings
from tests.control.conftest import make_app, run_in
from tests.support.sentinels import Watched
from tests.topologies.tools import has_waitaof, skip_without_waitaof

DISK = Durability("disk", 1, 3.0)
KEPT = "; until then the broker keeps the messages of parked tasks"
NO_FILE = "throttle_park_durability is 'disk', and the store writes no append-only file: set appendonly yes in it"


def replicas(count: int) -> Durability:
    return Durability("replicas", count, 3.0)


def found(server: EmbeddedServer, durability: Durability) -> list[str]:
    with Redis.from_url(server.url) as client:
        return list(safety_findings(client, durability))


@pytest.mark.parametrize(
    ("own_server", "said"),
    [
        pytest.param({"persistent": True, "options": {"appendfsync": "always"}}, [], id="a server that can"),
        pytest.param({"persistent": False}, [NO_FILE + KEPT], id="no append-only file"),
    ],
    indirect=["own_server"],
)
def test_disk(own_server: EmbeddedServer, said: list[str]) -> None:
    skip_without_waitaof(own_server)
    assert found(own_server, DISK) == said


def test_a_server_that_is_too_old_or_away(own_server: EmbeddedServer) -> None:
    if has_waitaof(own_server):
        own_server.options["rename-command"] = 'WAITAOF ""'
        own_server.restart()
    (said,) = found(own_server, DISK)
    assert "cannot tell when data is on disk (WAITAOF): upgrade to Redis 7.2 or Valkey, or set throttle_park" in said
    assert found(own_server, replicas(1)) != []
    own_server.kill()
    assert found(own_server, DISK) == []


@pytest.mark.parametrize(
    "own_server", [{"options": {"user": "default on nopass ~* &* +@all -@blocking"}}], indirect=True
)
@pytest.mark.parametrize(("durability", "command"), [(DISK, "WAITAOF"), (replicas(1), "WAIT")])
def test_a_user_without_the_right(own_server: EmbeddedServer, durability: Durability, command: str) -> None:
    if durability is DISK:
        skip_without_waitaof(own_server)
    with Redis.from_url(own_server.url) as client:
        client.execute_command("ACL", "SETUSER", "default", f"-{command.lower()}")
    (said,) = found(own_server, durability)
    assert said == (
        f"throttle_park_durability is {durability.kind!r}, and the store's user may not use {command}: "
        f"ACL SETUSER ... +{command.lower()}{KEPT}"
    )


@pytest.mark.parametrize("own_server", [{"persistent": True, "options": {"appendfsync": "everysec"}}], indirect=True)
def test_server_that_confirms_too_early(own_server: EmbeddedServer) -> None:
    with Redis.from_url(own_server.url) as client:
        info: Any = client.info()
    if "valkey_version" not in info:
        pytest.skip("Valkey is meant")
    (said,) = found(own_server, DISK)
    assert "with appendfsync everysec says so up to a second before it is" in said


def test_replicas(watched: Watched) -> None:
    assert found(watched.primary, replicas(1)) == []
    (said,) = found(watched.primary, replicas(2))
    assert said == (
        f"throttle_park_durability is 'replicas', and the store has 1 of throttle_park_replicas = 2: attach replicas "
        f"(replicaof), or set throttle_park_replicas lower{KEPT}"
    )


def test_doctor_reports_it(own_server: EmbeddedServer) -> None:
    app = make_app(own_server.url, throttle_park_durability="replicas", throttle_park_replicas=2)
    ended = run_in(app, "doctor")
    assert ended.code == 1
    assert [line for line in ended.lines if "has 0 of throttle_park_replicas = 2" in line]
