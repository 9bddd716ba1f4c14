"""The store is the node of a cluster that has the keys of the prefix, and of each group of limits."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from celery_throttle import ConfigurationError, Limit, NotAcquired, ThrottleControl
from celery_throttle.control.checks import diagnose
from celery_throttle.core.keys import Keys
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.store.caller import Caller, _Idle
from celery_throttle.store.calls import Store
from celery_throttle.store.servers.client import make_client
from celery_throttle.store.servers.doctor import findings
from celery_throttle.store.servers.primary import elsewhere
from tests.support.clusters import PRIMARIES, SLOTS, Cluster, ask, node_id, slot_of
from tests.support.journal import Journal
from tests.support.tls import TlsFront, make_certificate
from tests.support.waiting import until
from tests.support.workers import ROOT, Workers

#: Their slots are on the first, the second and the third primary.
PREFIXES = ("b", "c", "a")
FIRST = PREFIXES[0]
#: The rights of the store's user in the docs.
RULES = re.findall(r"ACL SETUSER \w+ on >PASSWORD (.+ -@all .+)", (ROOT / "docs" / "howto" / "redis.md").read_text())[0]


@contextmanager
def calling(url: str, prefix: str) -> Iterator[Caller]:
    caller = Caller(url, Keys(prefix))
    yield caller
    while caller._free:
        caller._free.pop()[0].disconnect()


@pytest.fixture
def caller(cluster: Cluster) -> Iterator[Caller]:
    """The publisher, with its keys on the first primary."""
    with calling(cluster.url, FIRST) as caller:
        yield caller


def locked(prefix: str) -> Any:
    return Store(Keys(prefix), 60).locked("x")


def port_of(caller: Caller) -> int:
    """Where it was connected last."""
    return int(caller._free[-1][0].port)


@pytest.mark.parametrize("number", range(PRIMARIES))
def test_any_node_leads_to_the_one_that_has_the_keys(cluster: Cluster, number: int) -> None:
    """Primary or replica."""
    keys = Keys(PREFIXES[number])
    for node in cluster.nodes:
        with make_client(f"redis+cluster://127.0.0.1:1,127.0.0.1:{node.port}/0", keys) as client:
            assert client.info("server")["tcp_port"] == cluster.nodes[number].port
            assert not client.exists(*keys.all, keys.wake)


def test_no_node_answers() -> None:
    with (
        make_client("redis+cluster://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3,127.0.0.1:4,127.0.0.1:5", Keys("a")) as client,
        pytest.raises(RedisConnectionError, match=r"no node of the cluster .*127\.0\.0\.1:3: [^;]*; and 2 more"),
    ):
        client.ping()


def test_a_client_that_has_no_keys_is_of_no_use(cluster: Cluster) -> None:
    with pytest.raises(ConfigurationError, match="keys"):
        make_client(cluster.url)


def test_a_slot_that_moved_is_followed(cluster: Cluster, caller: Caller) -> None:
    """On connections that stand, all of them. The slot is empty, so it can just be given away."""
    in_use = caller._connection()
    assert caller.call(locked(FIRST)) is None
    first, second, *_ = cluster.nodes
    assert port_of(caller) == first.port
    caller._free.appendleft(_Idle(in_use, time.monotonic(), owes=False))
    try:
        _give(cluster, first, second)
        assert caller.call(locked(FIRST)) is None
        assert port_of(caller) == second.port
        for key in ask(second, "KEYS", f"{{{FIRST}}}*"):
            ask(second, "DEL", key)
    finally:
        _give(cluster, second, first)


def _give(cluster: Cluster, source: EmbeddedServer, target: EmbeddedServer) -> None:
    """Give the slot of the first prefix to another primary."""
    slot, name = slot_of(FIRST), node_id(target)
    # Importing it gives the target a new epoch: else an earlier message of the source, still on its way, may win.
    assert ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", node_id(source))
    primaries = sorted(cluster.nodes[:PRIMARIES], key=lambda node: node is not target)
    for node in primaries:
        assert ask(node, "CLUSTER", "SETSLOT", slot, "NODE", name)
    until(lambda: all(_owner(node, slot) == name for node in primaries))


def _owner(node: EmbeddedServer, slot: int) -> str:
    """Return the name of the node that has the slot, as this one sees it."""
    ranges: list[Any] = ask(node, "CLUSTER", "SLOTS")
    return str(next(primary[2].decode() for start, end, primary, *_ in ranges if start <= slot <= end))


@contextmanager
def migrating(slot: int, source: EmbeddedServer, target: EmbeddedServer) -> Iterator[None]:
    ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", node_id(source))
    ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", node_id(target))
    try:
        yield
    finally:
        for node in (source, target):
            ask(node, "CLUSTER", "SETSLOT", slot, "STABLE")


@pytest.mark.parametrize("left", [[], ["records"]], ids=["ASK", "TRYAGAIN"])
def test_a_slot_on_its_way_is_refused_for_now(cluster: Cluster, caller: Caller, left: list[str]) -> None:
    """By a connection that stands, which is kept; a new one would not be of use before that is over."""
    keys, call = Keys(FIRST), locked(FIRST)
    first, second, *_ = cluster.nodes
    caller.call(call)
    names = [key for key in keys.all if key.rpartition(":")[2] in left]
    for name in names:
        ask(first, "HSET", name, "field", "value")
    with migrating(slot_of(keys.prefix), first, second), make_client(cluster.url, keys) as client:
        with pytest.raises(ResponseError) as refused:
            caller.call(call)
        assert not elsewhere(refused.value)
        assert len(caller._free) == 1
        with pytest.raises(RedisConnectionError, match="no node of the cluster has the keys"):
            client.ping()
    caller.call(call)
    with make_client(cluster.url, keys) as client:
        assert client.ping()
    for name in names:
        ask(first, "DEL", name)


def test_a_user_with_the_least_rights(cluster: Cluster) -> None:
    """It may not ask for the nodes of the cluster, and is still redirected."""
    rules = RULES.replace("shop", PREFIXES[1]).split()
    for node in cluster.nodes:
        assert ask(node, "ACL", "SETUSER", "least", "on", ">secret", *rules) == b"OK"
    with calling(f"redis+cluster://least:secret@127.0.0.1:{cluster.nodes[0].port}", PREFIXES[1]) as caller:
        assert caller.call(locked(PREFIXES[1])) is None
        assert port_of(caller) == cluster.nodes[1].port


def test_tls(own_server: EmbeddedServer, tmp_path: Path) -> None:
    """One server has all keys, as a cluster of one would."""
    certificate, key = make_certificate(tmp_path)
    with TlsFront(own_server.port, certificate, key) as front:
        query = urlencode({"ssl_cert_reqs": "CERT_REQUIRED", "ssl_ca_certs": str(certificate)})
        with make_client(f"rediss+cluster://127.0.0.1:{front.port}?{query}", Keys("a")) as client:
            assert client.ping()
        assert front.connections >= 1


def test_findings(cluster: Cluster, own_server: EmbeddedServer) -> None:
    def about(url: str) -> list[str]:
        with make_client(url, Keys("throttle")) as client:
            return [found for found in findings(client, url) if "cluster" in found]

    alone = f"127.0.0.1:{own_server.port}"
    assert about(cluster.url) == about(f"redis://{alone}") == []
    [found] = about(f"redis+cluster://{alone}")
    assert "cluster mode is disabled" in found
    [found] = about(f"redis://127.0.0.1:{cluster.primary.port}")
    assert "write redis+cluster:// in throttle_url" in found


GROUPS = "tests.support.apps.groups"
TASKS = ("in_eu", "in_us", "anywhere")


def scattered() -> str:
    """A prefix whose three groups are on three nodes."""
    share = SLOTS // PRIMARIES + 1
    for number in count():
        prefix = f"shop{number}"
        if len({slot_of(place) // share for place in (prefix, f"{prefix}:eu", f"{prefix}:us")}) == PRIMARIES:
            return prefix
    raise AssertionError


def test_each_group_is_on_its_own_node(cluster: Cluster, workers: Workers, journal: Journal) -> None:
    """Until its data is removed."""
    prefix = scattered()
    workers.conf |= {"throttle_url": cluster.url, "throttle_prefix": prefix}
    app = workers.start_app(GROUPS, count=2, concurrency=8)
    for task in TASKS:
        for number in range(4):
            getattr(app, task).delay(f"{task}{number}")
    journal.wait_running(4)
    primaries = [node for node in cluster.nodes if b"role:master" in ask(node, "INFO", "replication")]
    used = [ask(node, "KEYS", f"{{{prefix}*:used") for node in primaries]
    assert sorted(len(keys) for keys in used) == [1] * PRIMARIES
    throttle = ThrottleControl(app.app)
    assert {status.name: status.held for status in throttle.status()} == {"eu": 2, "us": 1, app.anywhere.name: 1}
    diagnosis = diagnose(app.app)
    assert [each.what for each in diagnosis.findings if "not durable" not in each.what] == []
    facts = [(each.group, each.role, each.missing_rights) for each in diagnosis.stores]
    assert facts == [(group, "master", ()) for group in ("", "eu", "us")]
    with pytest.raises(NotAcquired):
        app.us.acquire(0, app=app.app)
    with Limit("eu 2", 1, group="eu").acquire(0, app=app.app):
        pass
    journal.let_all_go()
    journal.wait_finished(12)
    assert journal.max_running(task="in_eu") == 2
    assert journal.max_running(task="in_us") == journal.max_running(task="anywhere") == 1

    for worker in workers.started:
        worker.term()
    assert [worker.wait() for worker in workers.started] == [0, 0]
    ask(next(node for node in primaries if ask(node, "KEYS", f"{{{prefix}}}*")), "SET", f"{{{prefix}}}9", "1")
    ours = [len(ask(node, "KEYS", f"{{{prefix}[:}}]*:3:*")) for node in primaries]
    assert all(ours)
    assert throttle.remove_data().keys == sum(ours)
    left = [ask(node, "KEYS", f"{{{prefix}*") for node in primaries]
    assert sorted(map(len, left)) == [0] * (PRIMARIES - 1) + [1]
