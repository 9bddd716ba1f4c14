"""Reaching the store by its URL."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
from redis import Connection, Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_throttle.core.keys import Keys
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.errors import ConfigurationError
from celery_throttle.store.caller import Caller
from celery_throttle.store.calls import Store
from celery_throttle.store.servers.client import TIMEOUT, connection_factory, make_client
from tests.conftest import new_server


def test_a_client_speaks_to_the_store(redis: Redis, server: EmbeddedServer) -> None:
    with make_client(server.url) as client:
        client.set("k", "v")
    assert redis.get("k") == b"v"


def test_a_connection_is_made_but_not_connected(server: EmbeddedServer) -> None:
    """Connecting waits for the server, so the caller chooses where."""
    connection: Any = connection_factory(server.url)()
    assert connection._sock is None
    connection.connect()
    connection.send_command("PING")
    assert connection.read_response() == b"PONG"
    connection.disconnect()


@pytest.mark.parametrize("option", ["protocol=3", "decode_responses=true"])
def test_how_replies_are_read_is_ours(option: str, redis: Redis, server: EmbeddedServer) -> None:
    """Options in the same URL for other clients have no effect: the broker's, or those of the result backend."""
    redis.hset("k", "f", "v")
    connection: Any = connection_factory(f"{server.url}?{option}")()
    connection.connect()
    connection.send_command("HGETALL", "k")
    assert connection.read_response() == [b"f", b"v"]
    connection.disconnect()


@pytest.mark.parametrize("scheme", ["unix", "redis+socket"])
def test_a_unix_socket_will_do(scheme: str) -> None:
    """As redis-py writes it, and as kombu does."""
    with new_server(options={"unixsocket": "{dir}/redis.sock"}) as server:
        database = "db" if scheme == "unix" else "virtual_host"
        url = f"{scheme}://{server.directory}/redis.sock?{database}=3"
        with make_client(url) as client:
            client.set("k", "v")
            assert client.info("keyspace").keys() == {"db3"}
        with make_client(f"{scheme}://{server.directory}/redis.sock") as client:
            assert client.get("k") is None


@pytest.mark.parametrize("url", ["redis://a?sokket_timeout=1", "sentinel://a?master_name=m&x=1"])
def test_option_unknown_to_redis_py_is_refused(url: str) -> None:
    """Now, not in the thread that connects."""
    with pytest.raises(ConfigurationError, match="throttle_url has an option"):
        connection_factory(url)


def test_missing_server_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No retries, because only the caller can decide which calls may be repeated."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        attempts: list[Connection] = []
        connect: Any = Connection._connect

        def count(connection: Connection) -> Any:
            attempts.append(connection)
            return connect(connection)

        monkeypatch.setattr(Connection, "_connect", count)
        with (
            make_client(f"redis://127.0.0.1:{taken.getsockname()[1]}/0") as client,
            pytest.raises(RedisConnectionError),
        ):
            client.ping()
    assert len(attempts) == 1


def test_a_server_that_does_not_answer_is_waited_for_once(own_server: EmbeddedServer) -> None:
    with make_client(own_server.url) as client:
        client.ping()
        own_server.freeze()
        began = time.monotonic()
        with pytest.raises(RedisTimeoutError):
            client.ping()
    assert TIMEOUT / 2 < time.monotonic() - began < 2 * TIMEOUT


def test_the_error_of_a_certificate_that_is_not_there_names_it(server: EmbeddedServer) -> None:
    url = f"rediss://127.0.0.1:{server.port}/0?ssl_ca_certs=/not/there.pem"
    with pytest.raises(RedisConnectionError, match=r"its URL names /not/there\.pem as ssl_ca_certs"):
        Caller(url).call(Store(Keys("test"), 60.0).crowd("gpu"))
