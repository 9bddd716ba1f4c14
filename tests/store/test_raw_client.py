"""The client of publishes that wait, compared with the client of redis-py."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_throttle.embedded import EmbeddedServer
from celery_throttle.store.caller import Caller as RawClient
from celery_throttle.store.exchange import Arrival
from celery_throttle.store.scripts import Call, Script
from celery_throttle.store.servers.client import connection_factory
from tests.store.caller import Caller, Rows
from tests.store.cost import commands
from tests.support.tls import TlsFront, make_certificate

_ECHO = "return ARGV[1]"
ECHO = Script("echo", _ECHO, hashlib.sha1(_ECHO.encode()).hexdigest())


@pytest.fixture(autouse=True)
def _consistent() -> None:
    """Not the check of conftest.py: nothing here is about tasks."""


@pytest.fixture
def raw(server: EmbeddedServer) -> Iterator[RawClient]:
    client = RawClient(server.url)
    yield client
    close(client)


def close(client: RawClient) -> None:
    while client._free:
        client._free.pop().disconnect()


def test_a_call_is_packed_as_redis_py_packs_it(worker: Caller, server: EmbeddedServer) -> None:
    parcel = Arrival("t\u00e9", "1:gpu", "q", message=b"\xff\r\n\0")
    call = worker.call(Rows(1, parked=[parcel]), 7)
    expected = connection_factory(server.url)().pack_command(*call.evalsha())
    assert call.packed() == b"".join(expected)


def test_script_unknown_to_the_server_is_loaded(worker: Caller, raw: RawClient, redis: Redis) -> None:
    call = worker.store.locked("x" * 40)
    assert raw.call(call) is None
    with commands(redis) as calls:
        assert raw.call(call) is None
    assert "eval" not in calls


def test_a_server_that_is_no_primary_any_more_is_left(own_server: EmbeddedServer, redis: Redis) -> None:
    call = Call(Script("set", "return redis.call('SET', KEYS[1], '1')", "0" * 40), (1, "k"))
    client = RawClient(own_server.url)
    client.call(call)
    with Redis.from_url(own_server.url) as admin:
        admin.replicaof("127.0.0.1", redis.connection_pool.connection_kwargs["port"])
        with pytest.raises(ReadOnlyError):
            client.call(call)
        assert not client._free
        admin.replicaof("NO", "ONE")
    assert client.call(call) == b"OK"
    client._free.pop().disconnect()


@pytest.mark.parametrize("poll", [True, False])
def test_a_connection_is_used_again_and_a_broken_one_is_not(
    worker: Caller, raw: RawClient, redis: Redis, monkeypatch: pytest.MonkeyPatch, *, poll: bool
) -> None:
    if not poll:  # eventlet takes it away
        monkeypatch.setattr("celery_throttle.store.caller._poll", None)
    call = worker.store.locked("x" * 40)
    raw.call(call)
    [first] = raw._free
    raw.call(call)
    assert list(raw._free) == [first]
    redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")  # type: ignore[no-untyped-call]
    assert raw.call(call) is None
    assert list(raw._free) != [first]


def test_a_refused_call_leaves_the_connection_usable(worker: Caller, raw: RawClient) -> None:
    with pytest.raises(ResponseError):
        raw.call(Call(Script("bad", "return redis.call('NONSENSE')", "0" * 40), (0,)))
    [kept] = raw._free
    assert raw.call(worker.store.locked("x" * 40)) is None
    assert list(raw._free) == [kept]


@pytest.mark.parametrize("text", [b"", b"x", b"\r\n", b"$0\r\n", b"-ERR\r\n", b"x" * 5000, b"\xff\0" * 40])
@pytest.mark.parametrize("piece", [1, 2, 3, 4, 5, 6, 7, 8, 4096])
def test_a_text_is_read_whole_however_it_arrives(
    raw: RawClient, monkeypatch: pytest.MonkeyPatch, text: bytes, piece: int
) -> None:
    monkeypatch.setattr("celery_throttle.store.caller._ONE_PIECE", piece)
    call = Call(ECHO, (0, text))
    assert raw.call(call) == text
    [first] = raw._free
    assert raw.call(call) == text
    assert list(raw._free) == [first]  # so nothing was left on it


def test_a_server_that_is_silent_is_not_waited_for(own_server: EmbeddedServer) -> None:
    """Its late reply is not taken for the answer to another command."""
    client = RawClient(own_server.url)
    assert client.call(Call(ECHO, (0, "before"))) == b"before"
    with Redis.from_url(own_server.url) as other:
        other.client_pause(60_000, all=False)  # scripts are paused, and not the end of it
        with pytest.raises(RedisTimeoutError):
            client.call(Call(ECHO, (0, "late")))
        assert not client._free
        other.client_unpause()
    assert client.call(Call(ECHO, (0, "after"))) == b"after"
    close(client)


def test_over_tls(own_server: EmbeddedServer, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with TlsFront(own_server.port, certificate, key) as front:
        client = RawClient(f"rediss://127.0.0.1:{front.port}/0?ssl_ca_certs={certificate}")
        assert [client.call(Call(ECHO, (0, text))) for text in "abc"] == [b"a", b"b", b"c"]
        assert front.connections == 1
        close(client)


def test_a_forked_process_has_connections_of_its_own(worker: Caller, raw: RawClient) -> None:
    """Two processes on one connection would read each other's replies."""
    call = worker.store.locked("x" * 40)
    raw.call(call)
    [parents] = raw._free
    child = os.fork()
    if not child:
        raw.call(call)
        os._exit(parents in raw._free)
    assert os.waitpid(child, 0)[1] == 0
    assert list(raw._free) == [parents]
