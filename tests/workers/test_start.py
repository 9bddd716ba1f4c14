"""A worker that cannot work with its settings reports that at its start, in a readable line."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from celery_throttle.embedded import EmbeddedServer
from celery_throttle.worker.held_back import outage
from celery_throttle.worker.held_back.held_back import HeldBack
from celery_throttle.worker.held_back.outage import Outage
from celery_throttle.worker.runs import Run
from tests.support.relay import Relay
from tests.support.tls import TlsFront, make_certificate
from tests.support.workers import Workers
from tests.workers.conftest import FEATURES


def refused(workers: Workers, **how: Any) -> list[str]:
    """Return the output of a worker that does not start."""
    worker = workers.start(**how, wait=False)
    assert worker.wait() == 1
    return worker.log().splitlines()


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"throttle_leese": 3}, "Error: Unknown setting 'throttle_leese', did you mean 'throttle_lease'?"),
        ({"throttle_result_state": True}, "Error: Unknown setting 'throttle_result_state': leave it out, and connect"),
        ({"throttle_url": "redis://host/abc"}, "Error: throttle_url: the database must be a number, got 'abc'"),
        (
            {"task_annotations": {"tests.support.apps.basic.work": {"limit": "two"}}},
            "Error: Task tests.support.apps.basic.work: limit must be a whole number from 1 to",
        ),
    ],
    ids=["name", "state", "database", "option"],
)
def test_wrong_setup_ends_in_one_line(workers: Workers, conf: dict[str, Any], said: str) -> None:
    lines = refused(workers, conf=conf)
    assert lines[-1].startswith(said)
    assert not [line for line in lines if "Traceback" in line]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("Limit('gpu', limit=4)", "Error: Limit 'gpu' takes no limit=4: write Limit('gpu', 4)"),
        (
            "Limit('gpu', rate='5 per hour')",
            "Error: Limit 'gpu': rate: A rate is text such as '100/m', got '5 per hour': write '5/h'",
        ),
        (
            "def f(order_id): ...\napp.task(f, base=Throttled, limt=5)\napp.finalize()",
            "Error: Task mistaken.f: unknown option 'limt', did you mean 'limit'?",
        ),
    ],
    ids=["limit", "rate", "option"],
)
def test_wrong_setup_at_import_ends_in_one_line(workers: Workers, tmp_path: Path, code: str, said: str) -> None:
    (tmp_path / "mistaken.py").write_text(
        "from celery import Celery\n"
        "from celery_throttle import Limit, Throttled\n"
        f"app = Celery('shop', broker={workers.broker!r})\n"
        f"{code}\n"
    )
    lines = refused(workers, app="mistaken", quick=False)
    assert lines[-1] == said
    assert not [line for line in lines if "Traceback" in line]


@pytest.mark.parametrize("own_server", [{"options": {"requirepass": "right"}}], indirect=True)
@pytest.mark.parametrize(
    ("place", "said"),
    [
        (":wrong@{address}/0", "Error: The store redis://:**@{address}/0 refuses the user or the password"),
        ("{address}/0", "Error: The store redis://{address}/0 refuses the user or the password"),
        (":right@{address}/99", "Error: The store redis://:**@{address}/99 has no such database"),
    ],
    ids=["wrong", "none", "database"],
)
def test_a_store_that_does_not_let_us_in_stops_the_worker(
    own_server: EmbeddedServer, workers: Workers, server: EmbeddedServer, place: str, said: str
) -> None:
    workers.broker = server.url
    address = f"127.0.0.1:{own_server.port}"
    lines = refused(workers, conf={"throttle_url": "redis://" + place.format(address=address)})
    assert lines[-1].startswith(said.format(address=address))
    assert "correct throttle_url" in lines[-1]
    assert not [line for line in lines if ":wrong" in line or "Traceback" in line]


def test_store_with_tls_and_a_url_without_stops_the_worker(
    server: EmbeddedServer, workers: Workers, tmp_path: Path
) -> None:
    with TlsFront(server.port, *make_certificate(tmp_path)) as front:
        url = f"redis://127.0.0.1:{front.port}/0"
        lines = refused(workers, conf={"throttle_url": url})
    assert lines[-1].startswith(f"Error: The store {url} speaks TLS: write rediss:// in throttle_url (or ")
    assert not [line for line in lines if "Traceback" in line]


def test_store_without_tls_and_a_url_with_it_stops_the_worker(server: EmbeddedServer, workers: Workers) -> None:
    url = f"rediss://127.0.0.1:{server.port}/0"
    lines = refused(workers, conf={"throttle_url": url})
    assert lines[-1].startswith(f"Error: The store {url} speaks no TLS: write redis:// in throttle_url (or ")
    assert not [line for line in lines if "Traceback" in line]


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"])
def test_store_whose_certificate_is_not_there_stops_the_worker(
    server: EmbeddedServer, workers: Workers, tmp_path: Path, option: str
) -> None:
    missing = tmp_path / "missing.pem"
    lines = refused(workers, conf={"throttle_url": f"rediss://127.0.0.1:{server.port}/0?{option}={missing}"})
    assert lines[-1].startswith("Error: The store rediss://")
    assert f"names {missing} as {option}, which cannot be read here: correct the path" in lines[-1]


def test_store_below_6_2_stops_the_worker(server: EmbeddedServer, workers: Workers, redis: Redis) -> None:
    """Its scripts would fail once a second, for ever."""
    info: Any = redis.info("server")
    version = info["redis_version"]
    with Relay(server.port) as relay:
        relay.instead = (f"redis_version:{version}".encode(), b"redis_version:" + b"6.0.16789"[: len(version)])
        lines = refused(workers, conf={"throttle_url": relay.url})
        said = rf"Error: The store {relay.url} is Redis 6\.0\.\d+, which lacks commands .*: upgrade it to 6.2 or later"
    assert re.match(said, lines[-1])
    assert not [line for line in lines if "Traceback" in line]


def test_store_without_a_version_is_used(own_server: EmbeddedServer, workers: Workers) -> None:
    with Redis(port=own_server.port) as client:
        client.execute_command("ACL SETUSER default -info")
        workers.start(FEATURES, conf={"throttle_url": own_server.url})


def test_a_store_that_is_away_is_named(workers: Workers) -> None:
    """It may come; until then the log names the awaited address and the tasks that wait."""
    worker = workers.start(FEATURES, conf={"throttle_url": "redis://somebody:secret@127.0.0.1:1/7"})
    (line,) = worker.wait_for_log(r"cannot reach the store .*")
    assert "redis://somebody:**@127.0.0.1:1/7): throttled tasks wait, unacknowledged, until it is back" in line
    assert "secret" not in worker.log()


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("hold", "throttled tasks wait, unacknowledged, until it is back; 2 wait here"),
        ("run", "throttled tasks run without a permit"),
        ("fail", "throttled tasks fail"),
    ],
)
def test_outage_is_logged_every_minute(
    action: Any, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    monkeypatch.setattr(outage, "monotonic", lambda: now)
    caplog.set_level(logging.ERROR, "celery_throttle.worker.held_back.outage")
    nothing: Any = None
    held = HeldBack(nothing, nothing, lambda more: None)
    away = Outage("", action, held, lambda run: None, lambda run, error: None)
    if action == "hold":
        away.meet(Run(None, epoch=0))
        away.meet(Run(None, epoch=0))
    for _ in range(130):
        away.unreachable(ConnectionError("refused"))
        now += 1
    away.over()
    away.unreachable(ConnectionError("refused again"))
    at_first = said.partition(";")[0]
    assert [record.getMessage() for record in caplog.records] == [
        f"celery_throttle: cannot reach the store (refused): {at_first}",
        f"celery_throttle: still cannot reach the store (refused): {said}",
        f"celery_throttle: still cannot reach the store (refused): {said}",
        f"celery_throttle: cannot reach the store (refused again): {at_first}",
    ]
