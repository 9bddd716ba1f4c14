"""The ways to reach the store, the rights that a user of it needs, and two projects in one database."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from redis import Redis

from celery_throttle import ThrottleControl
from celery_throttle.core.keys import Keys
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.store.servers.client import make_client
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.tls import TlsFront, make_certificate
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import ROOT, Workers
from tests.workers.conftest import FEATURES, greeting

PASSWORD, IN_URL = "se:c/r@t", "se%3Ac%2Fr%40t"
#: The rights of the store's user in the docs: it has to be enough.
RULES = re.findall(r"ACL SETUSER \w+ on >PASSWORD (.+ -@all .+)", (ROOT / "docs" / "howto" / "redis.md").read_text())[0]
OPTIONS = {
    "unixsocket": "{dir}/redis.sock",
    "user": ["default on nopass ~* &* +@all", f"named on >{PASSWORD} ~* &* +@all", f"least on >{PASSWORD} {RULES}"],
}
one_server_for_all = pytest.mark.parametrize("own_server", [{"options": OPTIONS}], indirect=True)

#: Where the store is named, its URL and database, and the options of TLS, if any.
WAYS = [
    ("throttle_url", "redis://named:{IN_URL}@{address}/0", 0, {}),
    ("throttle_url", "unix://{dir}/redis.sock?db=6", 6, {}),
    ("throttle_url", "rediss://{secure}/4?{tls}", 4, {"ssl_cert_reqs": "required"}),
    ("broker", "redis://named:{IN_URL}@{address}", 0, {}),
    ("broker", "redis+socket://{dir}/redis.sock?virtual_host=6", 6, {}),
    ("broker", "rediss://{secure}/4?{tls}", 4, {"ssl_cert_reqs": "CERT_REQUIRED"}),
    ("broker_use_ssl", "redis://{secure}/4", 4, {"ssl_cert_reqs": "required"}),
]


@one_server_for_all
@pytest.mark.parametrize(("where", "url", "database", "tls"), WAYS, ids=[f"{way[0]}-{way[1]}" for way in WAYS])
def test_a_way_to_the_store(
    own_server: EmbeddedServer,
    workers: Workers,
    journal: Journal,
    tmp_path: Path,
    where: str,
    url: str,
    database: int,
    tls: dict[str, Any],
) -> None:
    """One worker, one permit: the second task is parked in this store, and resumed after a hint."""
    with ExitStack() as stack:
        places: dict[str, Any] = {"dir": own_server.directory, "address": f"127.0.0.1:{own_server.port}"}
        if tls:
            certificate, key = make_certificate(tmp_path)
            front = stack.enter_context(TlsFront(own_server.port, certificate, key))
            tls = {**tls, "ssl_ca_certs": str(certificate)}
            places |= {"secure": f"127.0.0.1:{front.port}", "tls": urlencode(tls)}
            with (
                make_client(f"rediss://127.0.0.1:{front.port}/0") as untrusting,
                pytest.raises(Exception, match=r"(?i)certificate"),
            ):
                untrusting.ping()
        found = url.format(IN_URL=IN_URL, **places)
        if where == "throttle_url":
            workers.conf["throttle_url"] = found
        else:
            workers.broker = found
        if where == "broker_use_ssl":
            workers.conf["broker_use_ssl"] = tls
        client = stack.enter_context(Redis(port=own_server.port, db=database))
        state = State.at(client)

        app = workers.start_app(FEATURES, concurrency=3)
        journal.wait_begun(app.one_hold.delay("hold"))
        app.one.delay("next")
        state.wait_parked(1)
        heard_by = Keys("throttle").wake
        until(lambda: client.pubsub_numsub(heard_by)[0][1] == 1, describe="The worker does not hear hints.")
        if "{dir}" in url:
            assert any("U" in each["flags"] for each in client.client_list())
        journal.let_go("hold")
        journal.wait_finished(2)
        assert journal.max_running() == 1
        state.wait_empty()


@one_server_for_all
def test_a_user_with_the_least_rights(
    own_server: EmbeddedServer, workers: Workers, journal: Journal, server: EmbeddedServer
) -> None:
    workers.broker = server.url
    workers.conf |= {"throttle_url": f"redis://least:{IN_URL}@127.0.0.1:{own_server.port}/0", "throttle_prefix": "shop"}
    first, second = (workers.start(FEATURES, concurrency=2, queues=f"celery,{queue}", wait=False) for queue in "ab")
    first.wait_ready()
    second.wait_ready()
    assert greeting(first).endswith("/0: hints work, persistence unknown, eviction unknown")
    app = workers.app(FEATURES)
    with Redis(port=own_server.port) as client:
        state = State.at(client, "shop")
        copies: dict[str, Any] = {"task_id": "hold", "headers": {"throttle": {"publication": "one"}}}
        journal.wait_begun(app.app.send_task(app.one_hold.name, ("hold",), queue="a", **copies))
        app.app.send_task(app.one_hold.name, ("a second delivery",), queue="b", **copies)
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

        until(lambda: "cmdstat_ping" in client.info("commandstats"))  # to a store that has nothing to report

        app.app.tasks["celery_throttle.reap"].apply_async()
        # A job that is stopped on its way to the child makes Celery's own warm shutdown wait for half a minute.
        until(lambda: re.search(r"celery_throttle\.reap\[\S+\] succeeded", first.log() + second.log()))
        for worker in (first, second):
            worker.term()
            assert worker.wait() == 0
        denied = {(entry["reason"], entry["object"]) for entry in client.acl_log()}
        assert denied <= {("command", "client|setinfo"), ("command", "info")}, "more is needed than the docs list"
    assert len(journal.runs()) == 7


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
    journal.let_all_go()
    for result in results:
        result.get(timeout=HANGS_AFTER)
    assert [len(journal.runs(task=task.name)) for task in tasks] == [4, 4]
    assert [journal.max_running(task=task.name) for task in tasks] == [1, 1]
