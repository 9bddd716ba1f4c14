"""The client of publishes that wait, compared with the client of redis-py."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from celery import Celery
from redis import Redis
from redis.exceptions import ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_throttle.clients import StoreClient
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.errors import StoreUnavailable
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


def idle(client: RawClient) -> list[Any]:
    return [each.connection for each in client._free]


def close(client: RawClient) -> None:
    while client._free:
        client._free.pop().connection.disconnect()


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
    client._free.pop()[0].disconnect()


@pytest.mark.parametrize("poll", [True, False])
def test_a_connection_is_used_again_and_a_broken_one_is_not(
    worker: Caller, raw: RawClient, redis: Redis, monkeypatch: pytest.MonkeyPatch, *, poll: bool
) -> None:
    if not poll:  # eventlet takes it away
        monkeypatch.setattr("celery_throttle.store.caller._poll", None)
    call = worker.store.locked("x" * 40)
    raw.call(call)
    [first] = idle(raw)
    raw.call(call)
    assert idle(raw) == [first]
    redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")  # type: ignore[no-untyped-call]
    assert raw.call(call) is None
    assert idle(raw) != [first]


def test_a_refused_call_leaves_the_connection_usable(worker: Caller, raw: RawClient) -> None:
    with pytest.raises(ResponseError):
        raw.call(Call(Script("bad", "return redis.call('NONSENSE')", "0" * 40), (0,)))
    [kept] = idle(raw)
    assert raw.call(worker.store.locked("x" * 40)) is None
    assert idle(raw) == [kept]


@pytest.mark.parametrize("text", [b"", b"x", b"\r\n", b"$0\r\n", b"-ERR\r\n", b"x" * 5000, b"\xff\0" * 40])
@pytest.mark.parametrize("piece", [1, 2, 3, 4, 5, 6, 7, 8, 4096])
def test_a_text_is_read_whole_however_it_arrives(
    raw: RawClient, monkeypatch: pytest.MonkeyPatch, text: bytes, piece: int
) -> None:
    monkeypatch.setattr("celery_throttle.store.caller._ONE_PIECE", piece)
    call = Call(ECHO, (0, text))
    assert raw.call(call) == text
    [first] = idle(raw)
    assert raw.call(call) == text
    assert idle(raw) == [first]  # so nothing was left on it


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
    [parents] = idle(raw)
    child = os.fork()
    if not child:
        raw.call(call)
        os._exit(parents in idle(raw))
    assert os.waitpid(child, 0)[1] == 0
    assert idle(raw) == [parents]


# -- calls whose reply no caller waits for -----------------------------------------------------------------------------


def test_a_posted_call_is_carried_out_and_its_reply_goes_to_no_other_call(raw: RawClient) -> None:
    raw.call(Call(ECHO, (0, "known")))
    (connection,) = idle(raw)
    for number in range(3):
        raw.post(Call(ECHO, (0, f"posted {number}")))
    assert raw.call(Call(ECHO, (0, "asked"))) == b"asked"
    assert idle(raw) == [connection]


def test_a_posted_call_that_the_server_refuses_costs_no_other_call(raw: RawClient, redis: Redis) -> None:
    redis.script_flush()
    raw.post(Call(ECHO, (0, "unknown")))
    (connection,) = idle(raw)
    assert raw.call(Call(ECHO, (0, "asked"))) == b"asked"
    assert idle(raw) == [connection]


def test_a_connection_that_ends_after_a_posted_call_is_replaced(raw: RawClient, redis: Redis) -> None:
    raw.call(Call(ECHO, (0, "known")))
    raw.post(Call(ECHO, (0, "posted")))
    redis.client_kill_filter(_type="normal", skipme=True)
    assert raw.call(Call(ECHO, (0, "asked"))) == b"asked"


def test_a_server_that_hangs_after_a_posted_call_costs_the_next_call_one_timeout(own_server: EmbeddedServer) -> None:
    raw = RawClient(own_server.url)
    raw.call(Call(ECHO, (0, "known")))
    own_server.freeze()
    raw.post(Call(ECHO, (0, "posted")))
    with pytest.raises(RedisTimeoutError):
        raw.call(Call(ECHO, (0, "asked")))
    assert not idle(raw)


# -- how many connections there are ------------------------------------------------------------------------------------


def call_at_once(client: StoreClient, count: int) -> None:
    """Have so many threads call the store while it answers none of them, so that none has an idle connection."""
    with ThreadPoolExecutor(count) as pool:
        ready = Barrier(count)

        def call() -> Any:
            ready.wait()
            return client.ask(client.store.locked("x" * 40))

        assert [each.result() for each in [pool.submit(call) for _ in range(count)]] == [None] * count


def test_a_burst_of_publishers_shares_the_connections_of_a_pool(server: EmbeddedServer, redis: Redis) -> None:
    app = Celery(broker=server.url, backend=server.url, set_as_current=False)
    app.conf.broker_pool_limit = 3
    client = StoreClient(app, None)
    before = len(redis.client_list())
    redis.execute_command("CLIENT", "PAUSE", 300)  # type: ignore[no-untyped-call]
    call_at_once(client, 20)
    assert len(redis.client_list()) - before <= 3
    close(client._caller)


def test_idle_connections_are_closed_after_a_while(
    worker: Caller, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = worker.store.locked("x" * 40)
    first, second, third = (raw._connection() for _ in range(3))
    for each in (first, second, third):
        raw._keep(each)
    monkeypatch.setattr("celery_throttle.store.caller.IDLE", -1.0)
    raw.call(call)
    assert not idle(raw)
    assert [each._sock for each in (first, second, third)] == [None] * 3
    monkeypatch.setattr("celery_throttle.store.caller.IDLE", 60.0)
    raw.call(call)
    assert len(idle(raw)) == 1


def test_a_call_that_waited_for_its_turn_in_an_outage_is_not_sent(own_server: EmbeddedServer) -> None:
    """Or each of a hundred publishers would wait for a timeout of its own."""
    app = Celery(broker=own_server.url, backend=own_server.url, set_as_current=False)
    app.conf.broker_pool_limit = 1
    client = StoreClient(app, None)
    call = client.store.locked("x" * 40)
    client.ask(call)
    own_server.freeze()
    with ThreadPoolExecutor(8) as pool:
        errors = [each.exception() for each in [pool.submit(client.ask_if_up, call) for _ in range(8)]]
    sent = [error for error in errors if "a moment ago" not in str(error)]
    assert all(isinstance(error, StoreUnavailable) for error in errors)
    assert len(sent) == 1
