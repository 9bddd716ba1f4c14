"""The ways to reach the store, the rights that a user of it needs, and the report of a worker at its start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError

from celery_throttle import ThrottleControl
from celery_throttle.core.keys import Keys
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.store.servers.client import make_client
from celery_throttle.store.servers.doctor import findings
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.tls import TlsFront, make_certificate
from tests.support.waiting import until
from tests.support.workers import ROOT, Workers
from tests.workers.conftest import FEATURES

PASSWORD, IN_URL = "se:c/r@t", "se%3Ac%2Fr%40t"
#: The rights of the store's user in the docs: it has to be enough.
RULES = re.findall(r"ACL SETUSER \w+ on >PASSWORD (.+ -@all .+)", (ROOT / "docs" / "howto" / "redis.md").read_text())[0]
OPTIONS = {
    "unixsocket": "{dir}/redis.sock",
    "user": [
        "default on nopass ~* &* +@all",
        f"named on >{PASSWORD} ~* &* +@all",
        f"managed on >{PASSWORD} ~* &* +@all -config",
        f"least on >{PASSWORD} {RULES}",
    ],
}
one_server_for_all = pytest.mark.parametrize("own_server", [{"options": OPTIONS}], indirect=True)


@pytest.fixture
def tls(own_server: EmbeddedServer, tmp_path: Path) -> Iterator[tuple[TlsFront, Path]]:
    certificate, key = make_certificate(tmp_path)
    with TlsFront(own_server.port, certificate, key) as front:
        yield front, certificate


def check_throttling(workers: Workers, journal: Journal, state: State) -> None:
    """One worker, one permit: the second task is parked in this store, and resumed."""
    app = workers.start_app(FEATURES, concurrency=3)
    journal.wait_begun(app.one_hold.delay("hold"))
    app.one.delay("next")
    state.wait_parked(1)
    with state.client() as client:
        channel = Keys("throttle").wake
        until(lambda: client.pubsub_numsub(channel)[0][1] == 1, describe="The worker does not hear hints.")
    journal.let_go("hold")
    journal.wait_finished(2)
    assert journal.max_running() == 1
    state.wait_empty()


@one_server_for_all
@pytest.mark.parametrize("how", ["password", "database", "unix", "managed"])
def test_the_store_is_named_by_the_setting(
    how: str, own_server: EmbeddedServer, workers: Workers, journal: Journal
) -> None:
    address = f"127.0.0.1:{own_server.port}"
    url = {
        "password": f"redis://named:{IN_URL}@{address}/0",
        "database": f"redis://{address}/5",
        "unix": f"unix://{own_server.directory}/redis.sock?db=6",
        "managed": f"redis://managed:{IN_URL}@{address}/7",
    }[how]
    database = {"password": 0, "database": 5, "unix": 6, "managed": 7}[how]
    workers.conf["throttle_url"] = url
    with Redis(port=own_server.port, db=database) as client:
        check_throttling(workers, journal, State.at(client))
    if how == "unix":
        with Redis(port=own_server.port) as client:
            assert any("U" in found["flags"] for found in client.client_list())


@one_server_for_all
@pytest.mark.parametrize("how", ["password", "database", "unix"])
def test_the_store_is_the_broker(how: str, own_server: EmbeddedServer, workers: Workers, journal: Journal) -> None:
    address = f"127.0.0.1:{own_server.port}"
    workers.broker = {
        "password": f"redis://named:{IN_URL}@{address}",
        "database": f"redis://{address}/5",
        "unix": f"redis+socket://{own_server.directory}/redis.sock?virtual_host=6",
    }[how]
    with Redis(port=own_server.port, db={"password": 0, "database": 5, "unix": 6}[how]) as client:
        check_throttling(workers, journal, State.at(client))


@one_server_for_all
@pytest.mark.parametrize("how", ["setting", "broker-url", "broker-setting"])
def test_tls(
    how: str, tls: tuple[TlsFront, Path], own_server: EmbeddedServer, workers: Workers, journal: Journal
) -> None:
    front, certificate = tls
    options = {"ssl_cert_reqs": "required", "ssl_ca_certs": str(certificate)}
    secure = f"rediss://127.0.0.1:{front.port}/4"
    if how == "setting":
        workers.conf["throttle_url"] = f"{secure}?{urlencode(options)}"
    elif how == "broker-url":
        workers.broker = f"{secure}?{urlencode(options | {'ssl_cert_reqs': 'CERT_REQUIRED'})}"
    else:
        workers.broker = secure.replace("rediss", "redis")
        workers.conf["broker_use_ssl"] = options
    with Redis(port=own_server.port, db=4) as client:
        check_throttling(workers, journal, State.at(client))
    assert front.connections >= 2


@one_server_for_all
def test_untrusted_certificate_is_refused(tls: tuple[TlsFront, Path]) -> None:
    front, _ = tls
    with (
        make_client(f"rediss://127.0.0.1:{front.port}/0") as client,
        pytest.raises(Exception, match=r"(?i)certificate"),
    ):
        client.ping()


@one_server_for_all
def test_a_user_with_the_least_rights(
    own_server: EmbeddedServer, workers: Workers, journal: Journal, redis: Redis
) -> None:
    workers.broker = f"redis://127.0.0.1:{redis.connection_pool.connection_kwargs['port']}/0"
    workers.conf |= {"throttle_url": f"redis://least:{IN_URL}@127.0.0.1:{own_server.port}/0", "throttle_prefix": "shop"}
    first, second = (workers.start(FEATURES, concurrency=2, queues=f"celery,{queue}", wait=False) for queue in "ab")
    first.wait_ready()
    second.wait_ready()
    app = workers.app(FEATURES)
    with Redis(port=own_server.port) as client:
        state = State.at(client, "shop")
        hold = journal.wait_begun(app.one_hold.apply_async(("hold",), queue="a"))
        app.one_hold.apply_async(("a second delivery",), queue="b", task_id=hold.id)
        revoked = app.one.apply_async(("revoked",), queue="b")
        app.one.apply_async(("other queue",), queue="b")
        app.retry.apply_async(("retry",), queue="a")
        app.reject_late.apply_async(("requeue",), {"requeue": True}, queue="b")
        state.wait_parked(4)
        revoked.revoke()
        state.wait_parked(3)
        throttle = ThrottleControl(app.app)
        throttle.limit("single").override(1)
        assert throttle.limit("single").reset()
        assert "single" in {limit.name for limit in throttle.status()}
        assert throttle.explain(throttle.holders()[0].task_id).state == "held"
        assert throttle.explain(throttle.parked()[0].task_id).state == "parked"
        journal.let_go("hold")
        journal.wait_finished(1 + 1 + 3 + 2)
        state.wait_empty()
        assert client.pubsub_numsub(Keys("shop").wake)[0][1] == 2

        app.app.tasks["celery_throttle.reap"].apply_async()
        # A job that is stopped on its way to the child makes Celery's own warm shutdown wait for half a minute.
        until(lambda: re.search(r"celery_throttle\.reap\[\S+\] succeeded", first.log() + second.log()))
        for worker in (first, second):
            worker.term()
            assert worker.wait() == 0
        denied = {(entry["reason"], entry["object"]) for entry in client.acl_log()}
        assert denied <= {("command", "client|setinfo"), ("command", "info")}, "more is needed than the docs list"
    assert len(journal.runs()) == 7


# -- the report at the start -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_server", [{"options": {"maxmemory-policy": "allkeys-lru"}}], indirect=True)
def test_a_worker_warns_of_a_store_that_may_forget(own_server: EmbeddedServer, workers: Workers) -> None:
    worker = workers.start(FEATURES)
    log = worker.log()
    assert log.count("maxmemory-policy allkeys-lru") == log.count("set maxmemory-policy noeviction") == 1
    assert log.count("set appendonly yes") == 1
    assert "replica" not in log
    assert own_server.running


@pytest.mark.parametrize("own_server", [{"persistent": True}], indirect=True)
def test_a_good_store_is_not_mentioned(own_server: EmbeddedServer, workers: Workers) -> None:
    worker = workers.start(FEATURES)
    assert not re.search("WARNING.*celery_throttle:", worker.log())
    assert own_server.running


def test_a_worker_warns_of_a_replica(redis: Redis, own_server: EmbeddedServer, workers: Workers) -> None:
    primary = redis.connection_pool.connection_kwargs["port"]
    with Redis(port=own_server.port) as client:
        client.replicaof("127.0.0.1", primary)
        workers.broker = f"redis://127.0.0.1:{primary}/0"
        workers.conf["throttle_url"] = own_server.url
        worker = workers.start(FEATURES)
        assert worker.log().count("the store is a replica, which cannot be written to") == 1
        client.replicaof("NO", "ONE")


class FakeClient:
    """Answers INFO and CONFIG GET; None stands for a refusal."""

    def __init__(self, info: dict[str, Any], config: dict[str, str] | None) -> None:
        self._info, self._config = info, config

    def info(self) -> dict[str, Any]:
        return self._info

    def config_get(self, name: str) -> dict[str, str]:
        if self._config is None:
            raise NoPermissionError("this user has no permissions to run the 'config|get' command")
        return {name: self._config[name]}


GOOD = {"role": "master", "redis_version": "7.2.4", "maxmemory_policy": "noeviction", "aof_enabled": 1}


@pytest.mark.parametrize(
    ("version", "too_old"),
    [("6.0.16", True), ("5.0.7", True), ("6.2.0", False), ("6.10.1", False), ("7.0.15", False), ("10.1", False)],
)
def test_versions(version: str, too_old: bool) -> None:
    found = list(findings(FakeClient({**GOOD, "redis_version": version}, {})))  # type: ignore[arg-type]
    assert [version in finding and "6.2" in finding for finding in found] == [True] * too_old


@pytest.mark.parametrize(
    ("info", "config", "fixes"),
    [
        ({}, None, []),
        ({"role": "slave"}, None, ["throttle_url"]),
        ({"maxmemory_policy": "volatile-ttl"}, None, ["noeviction"]),
        ({"maxmemory_policy": None}, {"maxmemory-policy": "allkeys-lfu"}, ["noeviction"]),
        ({"maxmemory_policy": None}, None, []),
        ({"aof_enabled": 0}, {"save": ""}, ["appendonly"]),
        ({"aof_enabled": 0}, {"save": "3600 1"}, []),
        ({"aof_enabled": 0}, None, []),
    ],
)
def test_findings_come_with_the_fix(info: dict[str, Any], config: dict[str, str] | None, fixes: list[str]) -> None:
    found = list(findings(FakeClient({**GOOD, **info}, config)))  # type: ignore[arg-type]
    assert len(found) == len(fixes)
    assert all(fix in finding for fix, finding in zip(fixes, found, strict=True))


def test_two_projects_on_one_database(workers: Workers, journal: Journal) -> None:
    """Kept apart by Celery's ``global_keyprefix``, with a limit of one name in both."""
    apps = []
    for number, name in enumerate((FEATURES, "tests.support.apps.custom")):
        prefix = {"global_keyprefix": f"{number}:"}
        workers.conf |= {"broker_transport_options": prefix, "result_backend_transport_options": prefix}
        workers.start(name)
        apps.append(workers.app(name))
    tasks = [apps[0].one_hold, apps[1].hooked]

    results = [task.delay(f"{task.name} {number}") for number in range(4) for task in tasks]

    journal.wait_running(1, task="one_hold")
    journal.wait_running(1, task="hooked")
    journal.let_go(*(f"{task.name} {number}" for number in range(4) for task in tasks))
    for result in results:
        result.get(timeout=20)
    assert [len(journal.runs(task=task.name)) for task in tasks] == [4, 4]
    assert [journal.max_running(task=task.name) for task in tasks] == [1, 1]
