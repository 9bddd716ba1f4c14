"""The store is the server that the sentinels name."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from celery import Celery
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from celery_throttle.control.checks import Diagnosis, diagnose
from celery_throttle.core.keys import Keys
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.store.caller import Caller
from celery_throttle.store.calls import Store
from celery_throttle.store.servers.client import make_client
from tests.conftest import new_server
from tests.failures.tools import ONCE
from tests.support import sentinels
from tests.support.journal import Journal
from tests.support.sentinels import NAME, Sentinel, Watched
from tests.support.tls import TlsFront, make_certificate
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Workers
from tests.topologies.tools import reap

PASSWORD = "se:c/r@t"


@pytest.mark.parametrize(
    ("form", "database"),
    [
        ("sentinel://127.0.0.1:1,127.0.0.1:{port}/3?master_name={name}", 3),
        ("sentinel://127.0.0.1:1/3;sentinel://127.0.0.1:{port}?master_name={name}", 3),
        ("redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/{name}/4", 4),
        ("redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/{name}", 0),
    ],
)
def test_the_primary_is_found_past_a_sentinel_that_is_down(watched: Watched, form: str, database: int) -> None:
    with make_client(form.format(port=watched.sentinel.port, name=NAME)) as client:
        client.set("k", form)
    with Redis(port=watched.servers[0].port, db=database, decode_responses=True) as client:
        assert client.get("k") == form


def test_no_primary_is_found(watched: Watched) -> None:
    nowhere = f"sentinel://127.0.0.1:1,127.0.0.1:2/0?master_name={NAME}"
    for url, said in (
        (watched.url.replace(NAME, "other"), r"primary named 'other' .*: it does not know that name"),
        (nowhere, r"primary named 'mymaster' .*127\.0\.0\.1:2: .* check throttle_url"),
    ):
        with make_client(url) as client, pytest.raises(RedisConnectionError, match=said):
            client.ping()


def test_a_replica_is_not_taken_for_the_primary(watched: Watched) -> None:
    """A sentinel that is behind names the former primary; the next one is asked."""
    with Sentinel(watched.servers[1].binary, watched.servers[1].port) as behind:
        url = f"sentinel://127.0.0.1:{behind.port}/0?master_name={NAME}"
        with make_client(url) as client, pytest.raises(RedisConnectionError, match="its role is slave"):
            client.ping()
        with make_client(url.replace("/0", f",127.0.0.1:{watched.sentinel.port}/0")) as client:
            assert client.info("replication")["role"] == "master"


def test_client_of_a_primary_without_replica_goes_to_the_new_one() -> None:
    """Cut off from the others it refuses to write (``min-replicas-to-write 1``), and no connection breaks."""
    keys = Keys("throttle")
    with sentinels.watched(new_server) as watched:
        old, new = watched.servers
        caller = Caller(watched.url, keys)
        declare = Store(keys, 60).declare("", [("gpu", "1")])
        birth = caller.call(declare)
        watched.wait_replicated()
        with Redis(port=new.port) as client:
            client.replicaof("NO", "ONE")
        with Redis(port=old.port) as client:
            client.config_set("min-replicas-to-write", 1)
            until(lambda: not client.info("replication")["min_slaves_good_slaves"])
        watched.sentinel.ask("REMOVE", NAME)
        watched.sentinel.ask("MONITOR", NAME, "127.0.0.1", str(new.port), "1")
        until(lambda: watched.primary is new)

        assert caller.call(declare) == birth


def test_passwords(watched: Watched) -> None:
    """The URL has that of the primary, as with kombu; that of the sentinels is an option of its own."""
    with Redis(port=watched.servers[0].port) as client:
        client.execute_command("ACL", "SETUSER", "shop", "on", f">{PASSWORD}", "~*", "+@all")
    with Sentinel(watched.servers[0].binary, watched.servers[0].port, password=PASSWORD) as locked:
        place = f"127.0.0.1:{locked.port}/0?master_name={NAME}"
        with make_client(
            f"sentinel://shop:{quote(PASSWORD, '')}@{place}&sentinel_password={quote(PASSWORD)}"
        ) as client:
            assert client.execute_command("ACL", "WHOAMI") == b"shop"
        with make_client(f"sentinel://{place}") as client, pytest.raises(RedisConnectionError, match=r"(?i)auth"):
            client.ping()


def test_tls(own_server: EmbeddedServer, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with TlsFront(own_server.port, certificate, key) as front, Sentinel(own_server.binary, front.port) as sentinel:
        query = urlencode({"master_name": NAME, "ssl": "true", "ssl_ca_certs": str(certificate)})
        with make_client(f"sentinel://127.0.0.1:{sentinel.port}?{query}") as client:
            assert client.ping()
        assert front.connections >= 1


def diagnosis(url: str) -> Diagnosis:
    app = Celery("shop", set_as_current=False)
    app.conf.throttle_url = url
    return diagnose(app)


def test_doctor(watched: Watched) -> None:
    told = diagnosis(watched.url)
    assert [each.what for each in told.findings if "not durable" not in each.what] == []
    assert [(store.role, store.missing_rights) for store in told.stores] == [("master", ())]
    told = diagnosis(f"redis://127.0.0.1:{watched.sentinel.port}")
    assert any("names a sentinel, not the store" in each.what for each in told.findings)


def test_broker_and_backend_behind_sentinels_are_enough(watched: Watched, workers: Workers, journal: Journal) -> None:
    """No setting of ours."""
    # The same sentinel twice: redis-py, as kombu uses it, waits long for one that is down.
    workers.broker = ";".join([f"sentinel://127.0.0.1:{watched.sentinel.port}"] * 2)
    workers.backend = f"sentinel://127.0.0.1:{watched.sentinel.port}/1"
    options = {"master_name": NAME, "sentinel_kwargs": {"socket_timeout": 1.0}}
    workers.conf |= {"broker_transport_options": options, "result_backend_transport_options": options}
    worker = workers.start(ONCE)
    app = workers.app(ONCE)
    held = journal.wait_begun(app.hold_one.delay("held"))
    assert app.hold_one.delay("held").id == held.id
    locked = app.hold_one.locked_by("held")
    assert (locked.task_id, locked.state) == (held.id, "running")
    assert reap(app) == 0
    journal.let_go("held")
    assert held.get(timeout=HANGS_AFTER) == "held"
    assert len(journal.runs()) == 1
    with Redis(port=watched.servers[0].port) as client:
        assert client.exists(Keys("throttle").all[0])
    assert "cannot reach" not in worker.log()
