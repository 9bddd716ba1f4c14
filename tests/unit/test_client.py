"""Reaching the store by its URL, and finding the server that has the keys."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
from redis import Connection, Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_throttle.core.keys import Keys
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.store.caller import Caller
from celery_throttle.store.calls import Store
from celery_throttle.store.servers import primary
from celery_throttle.store.servers.client import TIMEOUT, connection_factory, make_client
from celery_throttle.store.servers.primary import Addresses, elsewhere, moved_to
from tests.conftest import new_server


@pytest.mark.parametrize("option", ["", "?protocol=3", "?decode_responses=true"])
def test_how_replies_are_read_is_ours(option: str, redis: Redis, server: EmbeddedServer) -> None:
    """Options in the same URL for other clients have no effect: the broker's, or those of the result backend."""
    redis.hset("k", "f", "v")
    connection: Any = connection_factory(f"{server.url}{option}")()
    assert connection._sock is None, "connecting waits for the server, so the caller chooses where"
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
        url = f"redis://127.0.0.1:{taken.getsockname()[1]}/0"
        with make_client(url) as client, pytest.raises(RedisConnectionError):
            client.ping()
    assert len(attempts) == 1


def test_a_server_that_does_not_answer_is_waited_for_once(
    own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[Connection] = []
    read: Any = Connection.read_response

    def count(connection: Connection, *args: Any, **how: Any) -> Any:
        waits.append(connection)
        return read(connection, *args, **how)

    with make_client(own_server.url) as client:
        client.ping()
        own_server.freeze()
        monkeypatch.setattr(Connection, "read_response", count)
        began = time.monotonic()
        with pytest.raises(RedisTimeoutError):
            client.ping()
    assert time.monotonic() - began > TIMEOUT / 2
    assert len(waits) == 1


def test_the_error_of_a_certificate_that_is_not_there_names_it(server: EmbeddedServer) -> None:
    url = f"rediss://127.0.0.1:{server.port}/0?ssl_ca_certs=/not/there.pem"
    with pytest.raises(RedisConnectionError, match=r"its URL names /not/there\.pem as ssl_ca_certs"):
        Caller(url).call(Store(Keys("test"), 60.0).crowd("gpu"))


# -- the server that has the keys --------------------------------------------------------------------------------------

ADDRESSES = [("a", 1), ("b", 2), ("c", 3)]


class Attempts:
    """Fails at some hosts; keeps a list of the tried ones."""

    def __init__(self, *failing: str) -> None:
        self.failing, self.tried = failing, ""

    def __call__(self, host: str, port: int) -> int:
        self.tried += host
        if host in self.failing:
            raise RedisConnectionError("no")
        return port


def test_the_first_that_works_is_the_first_next_time() -> None:
    addresses, attempts = Addresses(ADDRESSES), Attempts("a")
    assert addresses.try_each(attempts) == addresses.try_each(attempts) == 2
    assert attempts.tried == "abb"
    attempts.failing = ("b",)
    assert addresses.try_each(attempts) == 1
    assert attempts.tried == "abbba"
    with pytest.raises(RedisConnectionError, match=r"^a:1: no; b:2: no; c:3: no$"):
        Addresses(ADDRESSES).try_each(Attempts("a", "b", "c"))


def test_when_time_is_over_the_others_come_first_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some servers that say nothing must not stand before the one that would."""
    monkeypatch.setattr(primary, "PATIENCE", -1.0)
    addresses, attempts = Addresses(ADDRESSES), Attempts("a", "b")
    for _ in range(2):
        with pytest.raises(RedisConnectionError):
            addresses.try_each(attempts)
    assert addresses.try_each(attempts) == 3
    assert attempts.tried == "abc"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ReadOnlyError("You can't write against a read only replica."), True),
        # As redis-py before 6 has them, and Redis before 7.
        (ResponseError("MOVED 3999 127.0.0.1:6381"), True),
        (ResponseError("CLUSTERDOWN The cluster is down"), True),
        (ResponseError("Error running script (call to f_0): @user_script:1: -READONLY You can't write"), True),
        (ResponseError("NOREPLICAS Not enough good replicas to write. script: 0c, on @user_script:1."), True),
        (ResponseError("Error running script (call to f_0): @user_script:1: -NOREPLICAS Not enough good"), True),
        (ResponseError("MISCONF Errors writing to the AOF file: No space left on device"), True),
        (ResponseError("Error running script (call to f_0): @user_script:1: -MISCONF Errors writing to the AOF"), True),
        (ResponseError("ASK 3999 127.0.0.1:6381"), False),
        (ResponseError("TRYAGAIN Multiple keys request during rehashing of slot"), False),
        (ResponseError("a user's text: MOVED house"), False),
        (b"MOVED 3999 127.0.0.1:6381", False),
    ],
)
def test_another_server_is_the_one_to_ask(error: object, expected: bool) -> None:
    assert elsewhere(error) is expected


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("MOVED 3999 127.0.0.1:6381", ("127.0.0.1", 6381)),
        ("MOVED 3999 ::1:6381", ("::1", 6381)),
        ("MOVED 1 :7", ("", 7)),
    ],
)
def test_where_a_slot_moved_to(text: str, address: tuple[str, int]) -> None:
    assert moved_to(ResponseError(text)) == address
    assert moved_to(ResponseError(text.replace("MOVED", "ASK"))) is None
